"""Commands about the queue and the planner."""
