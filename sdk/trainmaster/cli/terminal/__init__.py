"""Output, exit codes, options and completion."""
