"""Logs of jobs: pages, search, streams."""
