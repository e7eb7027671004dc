"""Preemption: policy, victims, shrinking, eviction, nominations."""
