"""Expected starts: projection in virtual time, durations, backfill reservations."""
