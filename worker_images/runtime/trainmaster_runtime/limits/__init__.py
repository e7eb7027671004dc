"""Limits of CPU, memory and processes; control groups."""
