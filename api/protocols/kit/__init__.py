"""What several foreign protocols share: errors, JSON values, streams."""
