"""Fetching and unpacking the code archive."""
