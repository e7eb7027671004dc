"""Copying registered models."""
