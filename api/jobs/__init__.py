"""Jobs: submission, lists, changes of state."""
