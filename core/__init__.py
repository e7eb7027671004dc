"""What API, scheduler and executors share."""
