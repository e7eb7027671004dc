"""Vertex AI's REST API: training, tuning, registry, serving."""
