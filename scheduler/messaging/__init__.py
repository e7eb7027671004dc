"""Celery application, beat, wake-ups, work queue and their fallbacks."""
