"""Files in the outputs of jobs."""
