"""Wait reasons and queue positions, in words."""
