"""The history of jobs and other objects."""
