"""Reconciling one attempt: snapshot, decision, effects."""
