"""What the ranks do in the tests; each function runs in every rank, and what it returns must be JSON."""
