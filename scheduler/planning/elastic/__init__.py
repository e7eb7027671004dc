"""Growing and shrinking elastic gangs."""
