"""Job lists as others publish them, one module for each format; each makes arrivals, the earliest at 0."""
