"""Wait reasons, positions, alternatives, in words."""
