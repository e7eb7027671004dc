"""Periodic upkeep: garbage collection, resync, drift, nodes, quarantine."""
