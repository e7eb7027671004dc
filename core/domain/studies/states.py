"""State machines of studies and trials; like those of jobs in :mod:`core.domain.jobs.lifecycle`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from core.domain.errors import IllegalTransition


class StudyState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"  # no trial is begun; running ones go on
    STOPPING = "stopping"  # its trials are being cancelled
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (StudyState.SUCCEEDED, StudyState.FAILED, StudyState.CANCELLED)


class StudyEvent(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    CONFIRM_STOP = "confirm_stop"  # no trial of it runs any more
    SUCCEED = "succeed"
    FAIL = "fail"
    EXTEND = "extend"  # a larger budget: an ended study goes on, too


class TrialState(StrEnum):
    """``RUNNING``: from its creation on, whether its job is queued or runs, or an external client works on it."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    STOPPED = "stopped"  # early, by the study's rule; its result counts
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self is not TrialState.RUNNING

    @property
    def has_result(self) -> bool:
        return self in (TrialState.SUCCEEDED, TrialState.STOPPED)


_R, _P, _E = StudyState.RUNNING, StudyState.PAUSED, StudyEvent

STUDY_MOVES: Final[Mapping[tuple[StudyState, StudyEvent], StudyState]] = {
    (_R, _E.PAUSE): _P,
    (_P, _E.RESUME): _R,
    (_R, _E.STOP): StudyState.STOPPING,
    (_P, _E.STOP): StudyState.STOPPING,
    (StudyState.STOPPING, _E.CONFIRM_STOP): StudyState.CANCELLED,
    (_R, _E.SUCCEED): StudyState.SUCCEEDED,
    (_R, _E.FAIL): StudyState.FAILED,
    (_R, _E.EXTEND): _R,
    (_P, _E.EXTEND): _P,
    (StudyState.SUCCEEDED, _E.EXTEND): _R,
    (StudyState.FAILED, _E.EXTEND): _R,
    (StudyState.CANCELLED, _E.EXTEND): _R,
}

_PARTICIPLES: Final[Mapping[StudyEvent, str]] = {
    _E.PAUSE: "paused",
    _E.RESUME: "resumed",
    _E.STOP: "stopped",
    _E.EXTEND: "extended",
}
_HINTS: Final[Mapping[tuple[StudyState, StudyEvent], str]] = {
    (_P, _E.PAUSE): "it is paused already; resume it to go on",
    (_R, _E.RESUME): "it runs already",
    (StudyState.STOPPING, _E.STOP): "it is being stopped already; wait for its trials to end",
    (StudyState.STOPPING, _E.PAUSE): "it is being stopped; nothing of it is begun any more",
    (StudyState.STOPPING, _E.RESUME): "it is being stopped; wait for its end, then extend it to have more trials",
    (StudyState.STOPPING, _E.EXTEND): "it is being stopped; wait for its end, then extend it",
}


def advance_study(state: StudyState, event: StudyEvent) -> StudyState:
    """The next state.

    Raises:
        IllegalTransition: the table has no such transition; the sentence says why and what to do instead.
    """
    after = STUDY_MOVES.get((state, event))
    if after is not None:
        return after
    hint = _HINTS.get((state, event), f"it is {state.value}")
    if state.is_terminal:
        hint = f"it has ended ({state.value})"
        if event is _E.RESUME:
            hint += "; extend it to have more trials"
    raise IllegalTransition(f"The study cannot be {_PARTICIPLES.get(event, event.value)}: {hint}.")
