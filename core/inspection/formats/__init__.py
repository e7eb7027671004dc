"""Readers of checkpoint formats."""
