"""Metrics: segments, chunks, charts."""
