"""Backup of an installation into one file, and its restore, on SQLite and PostgreSQL alike."""
