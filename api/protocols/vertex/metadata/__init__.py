"""Metadata stores: contexts, artifacts, executions, lineage."""
