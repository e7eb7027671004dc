"""Expected starts: projection in virtual time, durations, reservations."""
