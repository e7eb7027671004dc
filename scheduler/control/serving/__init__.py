"""Keeping endpoints: what is wanted of them becomes jobs."""
