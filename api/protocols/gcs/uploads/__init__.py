"""Uploads in one request, in parts, and resumable."""
