"""Placing gangs on nodes: capacity, bin packing, eligibility, fragmentation, backfill reservations."""
