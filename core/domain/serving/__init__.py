"""Serving of models: rollout decisions as pure functions."""
