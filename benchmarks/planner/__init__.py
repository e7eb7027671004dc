"""The planner: speed, public traces, allocation."""
