"""The parameter server process."""
