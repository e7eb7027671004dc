"""Answering users' questions to the planner."""
