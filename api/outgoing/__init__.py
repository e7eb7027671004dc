"""Webhooks and notification channels."""
