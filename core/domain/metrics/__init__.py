"""Numeric series of trainings: points, digests (summaries of points), and limits."""
