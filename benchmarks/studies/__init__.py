"""Studies: latency, scale, quality of the points."""
