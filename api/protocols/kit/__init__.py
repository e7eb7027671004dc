"""What several foreign protocols share: errors, JSON values, streams, the table of Vertex names."""
