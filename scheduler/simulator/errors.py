"""Errors in a scenario or a trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class ScenarioError(Exception):
    """A mistake in a scenario or a trace: one sentence that names the place."""


def check_keys(given: Iterable[str], known: Sequence[str], where: str) -> None:
    """Raises :class:`ScenarioError` for a key that is not ``known``."""
    for key in given:
        if key not in known:
            raise ScenarioError(f"{where}: {key!r} is not known; there are {', '.join(known)}")
