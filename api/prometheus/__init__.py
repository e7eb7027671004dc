"""Metrics of the API process and of the platform, for Prometheus."""
