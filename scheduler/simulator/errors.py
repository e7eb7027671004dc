"""Errors in a scenario or a trace."""

from __future__ import annotations


class ScenarioError(Exception):
    """A mistake in a scenario or a trace: one sentence that names the place."""
