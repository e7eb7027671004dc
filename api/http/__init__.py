"""What all routes share of HTTP: errors, pages, cursors, ranges, server-sent events."""
