"""Serving of models: what moves, and when, as values."""
