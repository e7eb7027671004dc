"""Preemption: policy, victims, eviction, nominations."""
