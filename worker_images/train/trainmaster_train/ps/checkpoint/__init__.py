"""Checkpoints of shards."""
