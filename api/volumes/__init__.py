"""Volumes: their registration, and who may read and write where on them."""
