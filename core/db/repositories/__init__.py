"""Queries and statements, a module per table group."""
