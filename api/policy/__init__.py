"""The planner's policy."""
