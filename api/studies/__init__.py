"""Studies: creation, ask and tell, results."""
