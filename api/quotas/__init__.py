"""Quotas, guarantees and their use."""
