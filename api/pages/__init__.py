"""The built web application."""
