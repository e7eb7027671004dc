"""Output of the processes, written to the log."""
