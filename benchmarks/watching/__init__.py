"""Logs, metrics, checkpoints and web pages."""
