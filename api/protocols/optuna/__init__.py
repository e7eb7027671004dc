"""Optuna's storage protocol."""
