"""Platforms, clusters and peers that benchmarks measure against."""
