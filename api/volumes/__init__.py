"""Registered storage."""
