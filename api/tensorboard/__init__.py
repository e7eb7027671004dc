"""A TensorBoard process per set of jobs, and the proxy to it."""
