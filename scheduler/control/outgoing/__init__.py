"""Delivery of webhooks and notifications."""
