"""Drivers: `base` is the port, one package per engine."""
