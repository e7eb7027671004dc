"""Why the platform cannot start or stop: one sentence for the user."""

from __future__ import annotations


class CannotStart(Exception):
    """Its text is shown as it is."""
