"""Benchmarks; `docs/benchmarks.md` holds their figures."""
