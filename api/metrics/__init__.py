"""Metrics of jobs: series, charts, streams, resource use."""
