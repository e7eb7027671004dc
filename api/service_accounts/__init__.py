"""Service accounts: users of programs, each of one project."""
