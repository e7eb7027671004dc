"""The job spec's JSON Schema."""
