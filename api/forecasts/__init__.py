"""What-if questions to the planner."""
