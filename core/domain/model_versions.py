"""The state machine of model versions; like that of jobs in :mod:`core.domain.jobs.lifecycle`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from core.domain.errors import IllegalTransition


class VersionState(StrEnum):
    WAITING = "waiting"  # for the success of its job
    REGISTERING = "registering"  # its files are being copied
    READY = "ready"  # immutable
    FAILED = "failed"
    DELETING = "deleting"  # its files are being removed


class VersionEvent(StrEnum):
    BEGIN = "begin"  # its job has succeeded
    FINISH = "finish"
    FAIL = "fail"
    DELETE = "delete"


class Stage(StrEnum):
    NONE = "none"
    STAGING = "staging"
    PRODUCTION = "production"
    ARCHIVED = "archived"


_S, _E = VersionState, VersionEvent
VERSION_MOVES: Final[Mapping[tuple[VersionState, VersionEvent], VersionState]] = {
    (_S.WAITING, _E.BEGIN): _S.REGISTERING,
    (_S.WAITING, _E.FAIL): _S.FAILED,
    (_S.REGISTERING, _E.FINISH): _S.READY,
    (_S.REGISTERING, _E.FAIL): _S.FAILED,
    **{(state, _E.DELETE): _S.DELETING for state in _S},
}


def advance_version(state: VersionState, event: VersionEvent) -> VersionState:
    """The next state. Raises ``IllegalTransition``: the table has no such move."""
    after = VERSION_MOVES.get((state, event))
    if after is None:
        raise IllegalTransition(f"A version that is {state.value} cannot {event.value}.")
    return after
