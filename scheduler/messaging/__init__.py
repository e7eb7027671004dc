"""Celery application, beat, wake-ups and the fallback."""
