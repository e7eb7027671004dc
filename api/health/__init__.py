"""Liveness, readiness and the version."""
