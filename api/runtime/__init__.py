"""What replicas report."""
