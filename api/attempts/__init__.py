"""Attempts of jobs and their replicas."""
