"""What several foreign protocols share: errors, pages, filters, masks, JSON values, streams, callers, Vertex names."""
