"""Ray's job submission API."""
