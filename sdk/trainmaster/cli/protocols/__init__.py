"""Commands for other systems' clients."""
