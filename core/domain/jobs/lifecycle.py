"""State machines of jobs, attempts and replicas: one transition table each, applied by ``advance``.

A transition is a value: the next state, the side effects that the writer owes with it (:class:`Effect`), and the name
of its event. To add a state or a transition, change the table; ``docs/howto/control-loop.md`` lists what else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar, overload

from core.domain.errors import IllegalTransition
from core.domain.jobs.states import AttemptState, JobState, ReplicaState


class JobEvent(StrEnum):
    """Events of a job."""

    PLACE = "place"  # the planner found nodes for the whole gang
    RUN = "run"  # every replica runs
    SUCCEED = "succeed"
    FAIL = "fail"
    EXPIRE = "expire"  # max_wait or max_run_time is over
    REQUEUE = "requeue"  # its attempt ended and another one is due
    PAUSE = "pause"  # at once if queued; else when its attempt has ended
    RESUME = "resume"
    CANCEL = "cancel"  # at once if queued; else its attempt is stopped first
    CONFIRM_CANCEL = "confirm_cancel"  # its attempt has ended after a cancel


class AttemptEvent(StrEnum):
    """Events of an attempt."""

    START = "start"  # addresses are known, creation begins
    RUN = "run"
    END = "end"  # the executor confirmed that nothing of it is left


class ReplicaEvent(StrEnum):
    """Events of a replica."""

    CREATE = "create"  # the executor took the order
    RUN = "run"  # the user's code runs
    SUCCEED = "succeed"
    FAIL = "fail"
    LOSE = "lose"  # gone without an exit
    STOP = "stop"  # ended at the platform's request
    RESTART = "restart"  # the next generation of the same replica


class Effect(StrEnum):
    """What the writer owes with a transition, in the same transaction or (wake-ups) right after it."""

    STAMP_QUEUED = "stamp_queued"  # queued_at = now: it joins the queue's end
    STAMP_STARTED = "stamp_started"  # started_at = now, unless it has one
    STAMP_FINISHED = "stamp_finished"  # finished_at (or ended_at) = now
    CLEAR_EXIT = "clear_exit"  # an earlier exit no longer counts
    CLEAR_WAIT = "clear_wait"  # no wait reason, no not_before
    STOP_ATTEMPT = "stop_attempt"  # the live attempt has to end first
    RING_TICK = "ring_tick"  # the queue or the free capacity has changed
    RING_RECONCILE = "ring_reconcile"  # the live attempt must be reconciled


S = TypeVar("S", JobState, AttemptState, ReplicaState)


@dataclass(frozen=True, slots=True)
class Move(Generic[S]):
    """A legal transition. ``kind``: the name of its event, noun.verb."""

    state: S
    kind: str
    effects: frozenset[Effect]


def _move(state: S, kind: str, *effects: Effect) -> Move[S]:
    return Move(state, kind, frozenset(effects))


_OVER: Final = (Effect.STAMP_FINISHED, Effect.CLEAR_WAIT, Effect.RING_TICK)

_PLACED = _move(JobState.STARTING, "job.placed", Effect.CLEAR_WAIT, Effect.CLEAR_EXIT, Effect.RING_RECONCILE)
_RUNNING = _move(JobState.RUNNING, "job.running", Effect.STAMP_STARTED)
_SUCCEEDED = _move(JobState.SUCCEEDED, "job.succeeded", *_OVER)
_FAILED = _move(JobState.FAILED, "job.failed", *_OVER)
_EXPIRED = _move(JobState.EXPIRED, "job.expired", *_OVER)
# A restart keeps its place in the queue: its earlier wait still counts.
_REQUEUED = _move(JobState.QUEUED, "job.requeued", Effect.RING_TICK)
_PAUSED = _move(JobState.PAUSED, "job.paused", Effect.CLEAR_WAIT, Effect.RING_TICK)
_RESUMED = _move(JobState.QUEUED, "job.resumed", Effect.STAMP_QUEUED, Effect.RING_TICK)
_CANCELLING = _move(JobState.CANCELLING, "job.cancelling", Effect.STOP_ATTEMPT, Effect.RING_RECONCILE)
_CANCELLED = _move(JobState.CANCELLED, "job.cancelled", *_OVER)

JOB_MOVES: Final[Mapping[tuple[JobState, JobEvent], Move[JobState]]] = {
    (JobState.QUEUED, JobEvent.PLACE): _PLACED,
    (JobState.QUEUED, JobEvent.PAUSE): _PAUSED,
    (JobState.QUEUED, JobEvent.CANCEL): _CANCELLED,
    (JobState.QUEUED, JobEvent.EXPIRE): _EXPIRED,
    (JobState.QUEUED, JobEvent.FAIL): _FAILED,
    (JobState.STARTING, JobEvent.RUN): _RUNNING,
    (JobState.STARTING, JobEvent.SUCCEED): _SUCCEEDED,
    (JobState.STARTING, JobEvent.FAIL): _FAILED,
    (JobState.STARTING, JobEvent.EXPIRE): _EXPIRED,
    (JobState.STARTING, JobEvent.REQUEUE): _REQUEUED,
    (JobState.STARTING, JobEvent.PAUSE): _PAUSED,
    (JobState.STARTING, JobEvent.CANCEL): _CANCELLING,
    (JobState.RUNNING, JobEvent.SUCCEED): _SUCCEEDED,
    (JobState.RUNNING, JobEvent.FAIL): _FAILED,
    (JobState.RUNNING, JobEvent.EXPIRE): _EXPIRED,
    (JobState.RUNNING, JobEvent.REQUEUE): _REQUEUED,
    (JobState.RUNNING, JobEvent.PAUSE): _PAUSED,
    (JobState.RUNNING, JobEvent.CANCEL): _CANCELLING,
    (JobState.PAUSED, JobEvent.RESUME): _RESUMED,
    (JobState.PAUSED, JobEvent.CANCEL): _CANCELLED,
    (JobState.CANCELLING, JobEvent.CONFIRM_CANCEL): _CANCELLED,
}

_ATTEMPT_ENDED = _move(AttemptState.ENDED, "attempt.ended", Effect.STAMP_FINISHED, Effect.RING_TICK)

ATTEMPT_MOVES: Final[Mapping[tuple[AttemptState, AttemptEvent], Move[AttemptState]]] = {
    (AttemptState.PLACED, AttemptEvent.START): _move(AttemptState.STARTING, "attempt.starting"),
    (AttemptState.PLACED, AttemptEvent.END): _ATTEMPT_ENDED,
    (AttemptState.STARTING, AttemptEvent.RUN): _move(AttemptState.RUNNING, "attempt.running", Effect.STAMP_STARTED),
    (AttemptState.STARTING, AttemptEvent.END): _ATTEMPT_ENDED,
    (AttemptState.RUNNING, AttemptEvent.END): _ATTEMPT_ENDED,
}

_R_RUNNING = _move(ReplicaState.RUNNING, "replica.running", Effect.STAMP_STARTED)
_R_SUCCEEDED = _move(ReplicaState.SUCCEEDED, "replica.succeeded", Effect.STAMP_FINISHED)
_R_FAILED = _move(ReplicaState.FAILED, "replica.failed", Effect.STAMP_FINISHED)
_R_LOST = _move(ReplicaState.LOST, "replica.lost", Effect.STAMP_FINISHED)
_R_STOPPED = _move(ReplicaState.STOPPED, "replica.stopped", Effect.STAMP_FINISHED)
_R_RESTARTED = _move(ReplicaState.PENDING, "replica.restarted", Effect.CLEAR_EXIT)

REPLICA_MOVES: Final[Mapping[tuple[ReplicaState, ReplicaEvent], Move[ReplicaState]]] = {
    (ReplicaState.PENDING, ReplicaEvent.CREATE): _move(ReplicaState.STARTING, "replica.starting"),
    # The database may have missed the creation (killed between the call and the write): it is observed running.
    (ReplicaState.PENDING, ReplicaEvent.RUN): _R_RUNNING,
    (ReplicaState.PENDING, ReplicaEvent.FAIL): _R_FAILED,
    (ReplicaState.PENDING, ReplicaEvent.LOSE): _R_LOST,
    (ReplicaState.PENDING, ReplicaEvent.STOP): _R_STOPPED,
    (ReplicaState.STARTING, ReplicaEvent.RUN): _R_RUNNING,
    (ReplicaState.STARTING, ReplicaEvent.FAIL): _R_FAILED,
    (ReplicaState.STARTING, ReplicaEvent.LOSE): _R_LOST,
    (ReplicaState.STARTING, ReplicaEvent.STOP): _R_STOPPED,
    (ReplicaState.RUNNING, ReplicaEvent.SUCCEED): _R_SUCCEEDED,
    (ReplicaState.RUNNING, ReplicaEvent.FAIL): _R_FAILED,
    (ReplicaState.RUNNING, ReplicaEvent.LOSE): _R_LOST,
    (ReplicaState.RUNNING, ReplicaEvent.STOP): _R_STOPPED,
    (ReplicaState.FAILED, ReplicaEvent.RESTART): _R_RESTARTED,
    (ReplicaState.LOST, ReplicaEvent.RESTART): _R_RESTARTED,
    # A replica removed from an elastic gang, which has room again.
    (ReplicaState.STOPPED, ReplicaEvent.RESTART): _R_RESTARTED,
}

# Hints for frequent illegal transitions.
_HINTS: Final[Mapping[StrEnum, Mapping[JobState, str]]] = {
    JobEvent.CANCEL: {JobState.CANCELLING: "it is being cancelled already; wait for it to end"},
    JobEvent.PAUSE: {
        JobState.PAUSED: "it is paused already; resume it to go on",
        JobState.CANCELLING: "it is being cancelled; clone it to run it again",
    },
    JobEvent.RESUME: {
        JobState.QUEUED: "it waits for its turn already",
        JobState.STARTING: "it is being started already",
        JobState.RUNNING: "it runs already",
        JobState.CANCELLING: "it is being cancelled; clone it to run it again",
    },
}
# Participles of users' verbs and of terminal states for error messages.
_PARTICIPLES: Final[Mapping[StrEnum, str]] = {
    JobEvent.CANCEL: "cancelled",
    JobEvent.PAUSE: "paused",
    JobEvent.RESUME: "resumed",
}
_HOW_OVER: Final[Mapping[JobState, str]] = {
    JobState.SUCCEEDED: "has succeeded",
    JobState.FAILED: "has failed",
    JobState.CANCELLED: "was cancelled",
    JobState.EXPIRED: "has expired",
}


@overload
def advance(state: JobState, event: JobEvent) -> Move[JobState]: ...
@overload
def advance(state: AttemptState, event: AttemptEvent) -> Move[AttemptState]: ...
@overload
def advance(state: ReplicaState, event: ReplicaEvent) -> Move[ReplicaState]: ...
def advance(
    state: JobState | AttemptState | ReplicaState, event: JobEvent | AttemptEvent | ReplicaEvent
) -> Move[JobState] | Move[AttemptState] | Move[ReplicaState]:
    """The transition for ``event`` in ``state``.

    Raises:
        IllegalTransition: the table has none; the sentence says why and what to do instead.
    """
    move: Move[JobState] | Move[AttemptState] | Move[ReplicaState] | None
    match state, event:
        case JobState(), JobEvent():
            noun, move = "job", JOB_MOVES.get((state, event))
        case AttemptState(), AttemptEvent():
            noun, move = "attempt", ATTEMPT_MOVES.get((state, event))
        case ReplicaState(), ReplicaEvent():
            noun, move = "replica", REPLICA_MOVES.get((state, event))
        case _:
            raise TypeError(f"{event!r} is no event of {state!r}")
    if move is None:
        raise IllegalTransition(_refusal(noun, state, event))
    return move


def can_advance(state: JobState, event: JobEvent) -> bool:
    """Whether :func:`advance` would succeed; for offering only the verbs that work."""
    return (state, event) in JOB_MOVES


def _refusal(noun: str, state: StrEnum, event: StrEnum) -> str:
    if not isinstance(state, JobState) or event not in _PARTICIPLES:
        return f"The {noun} is {state.value}: {event.value.replace('_', ' ')} is no move in its table."
    if state.is_terminal:
        advice = "" if event is JobEvent.CANCEL else "; clone it to run it again"
        return f"The job {_HOW_OVER[state]} and cannot be {_PARTICIPLES[event]}{advice}."
    return f"The job cannot be {_PARTICIPLES[event]}: {_HINTS.get(event, {}).get(state, f'it is {state.value}')}."
