"""Long-running operations."""
