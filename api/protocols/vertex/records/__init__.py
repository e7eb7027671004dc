"""Resources that are only stored: create, get, list, patch, delete."""
