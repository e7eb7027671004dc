"""Periodic maintenance: garbage collection, resync, drift, nodes."""
