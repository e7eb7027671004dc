"""Client of the cluster's API server: access, errors, rate limit, reflector."""
