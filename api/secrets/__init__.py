"""Projects' secrets."""
