"""Pods of replicas: render, create, observe, delete."""
