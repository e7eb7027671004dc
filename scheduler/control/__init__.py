"""The control loop: load, decide, write under fenced leases."""
