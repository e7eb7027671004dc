"""Meaning, pure: lifecycle, contracts, resources, policy, errors."""
