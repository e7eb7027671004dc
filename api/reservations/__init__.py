"""Reserved nodes."""
