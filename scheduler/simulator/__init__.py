"""The production planner in virtual time."""
