"""API, control loop, starts and restarts."""
