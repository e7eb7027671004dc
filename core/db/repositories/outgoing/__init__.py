"""Webhooks, notifications, and what is due of them."""
