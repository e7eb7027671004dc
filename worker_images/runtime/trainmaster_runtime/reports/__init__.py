"""Reports to the API, and their spool."""
