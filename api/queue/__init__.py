"""The queue: order, wait reasons, expected starts, shares."""
