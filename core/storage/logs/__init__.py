"""Logs of replicas: parsing, merging, searching."""
