"""The model registry: versions, aliases, stages."""
