"""Versions of models: sources, lineage, files."""
