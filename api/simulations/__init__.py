"""Simulations of other policies on the own history."""
