"""Scenarios and job lists from files."""
