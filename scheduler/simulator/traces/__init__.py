"""Readers of published job lists, one module per format; each returns arrivals, the earliest at 0."""
