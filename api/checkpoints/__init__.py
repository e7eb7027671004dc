"""Checkpoints of jobs: lists, tensors, differences, retention."""
