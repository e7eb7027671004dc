"""The scheduler process: tick, reconcile, studies, endpoints."""
