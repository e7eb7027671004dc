"""Expected starts: projection in virtual time, durations, what-if forecasts, alternatives."""
