"""Custom jobs and training pipelines."""
