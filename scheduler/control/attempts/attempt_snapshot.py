"""What one look at an attempt sees, as values: rows, the executor's observations, and the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from trainmaster.spec import JobSpec, RestartPolicy

from core.domain.ids import AttemptId, JobId
from core.domain.jobs.exits import ExitFacts
from core.domain.jobs.layout import Layout
from core.domain.jobs.states import AttemptState, DesiredState, JobState, ReplicaState
from executors.base import Observation

# Roles that serve: they never decide the end of a job and are stopped as soon as the deciders are done.
SERVING_ROLES: Final = frozenset({"ps", "scheduler"})
CHIEF: Final = "chief"
WORKER: Final = "worker"
EVALUATOR: Final = "evaluator"


class StopCause(StrEnum):
    """Why the platform ends an attempt before it ended by itself."""

    CANCEL = "cancel"
    PAUSE = "pause"
    FAILURE = "failure"  # a replica failed whose role's policy ends the gang
    DEADLINE = "deadline"
    REFUSED = "refused"  # the executor said no
    CAPACITY = "capacity"  # the executor could not start it for too long
    REMOVED = "removed"  # the executor removed it before, as after a database was restored from a backup
    PREEMPT = "preempt"  # the planner gives its place to another job; it goes on later


@dataclass(frozen=True, slots=True)
class Stop:
    """``is_final``: no other attempt follows, whatever the exit means.

    Of a preemption: ``grace``, what replicas get for their last checkpoint instead of what their job states; ``code``, by
    what right; ``for_job``, who gets the place.
    """

    cause: StopCause
    sentence: str
    at: datetime
    is_final: bool = False
    grace: timedelta | None = None
    code: str = ""
    for_job: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "cause": self.cause.value,
            "sentence": self.sentence,
            "at": self.at.isoformat(),
            "is_final": self.is_final,
            **({} if self.grace is None else {"grace_s": self.grace.total_seconds()}),
            **({"code": self.code, "for_job": self.for_job} if self.code else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Stop:
        return cls(
            StopCause(data["cause"]),
            data["sentence"],
            datetime.fromisoformat(data["at"]),
            bool(data.get("is_final")),
            None if data.get("grace_s") is None else timedelta(seconds=data["grace_s"]),
            data.get("code", ""),
            data.get("for_job"),
        )


@dataclass(frozen=True, slots=True)
class GangMember:
    """A replica's row. ``exit`` is set once it has ended in a way that says something."""

    id: str
    role: str
    index: int
    generation: int
    state: ReplicaState
    node: str
    gpus: tuple[str, ...] = ()
    exit: ExitFacts | None = None
    detail: str = ""
    has_facts: bool = False
    started_at: datetime | None = None
    ended_at: datetime | None = None
    step: int = 0  # the last that it told of; 0: none
    holds_resources: bool = True  # its place is its own; an elastic gang gives back what it goes on without
    leave_reason: str = ""  # why its elastic gang is to go on without it, though it runs

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def is_over(self) -> bool:
        return self.state.is_terminal


@dataclass(frozen=True, slots=True)
class JobFacts:
    id: JobId
    name: str
    project_id: str
    project: str
    state: JobState
    wanted: DesiredState
    generation: int
    restart_count: int
    attempt_count: int
    resume_from: str | None
    output_volume: str
    output_path: str
    created_at: datetime
    spec: JobSpec
    trial: Mapping[str, Any] | None = None  # as ``jobs.trial`` has it


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    id: AttemptId
    number: int
    state: AttemptState
    generation: int
    layout: Layout | None
    resume_from: str | None
    stop: Stop | None
    created_at: datetime
    started_at: datetime | None
    decided_at: datetime | None
    world: int = 1  # counts the layouts that it has had


@dataclass(frozen=True, slots=True)
class PreviousEnd:
    """How the attempt before ended.

    ``streak``: ends without progress in a row, that one included. ``last_step``: where it came to, when a step that it
    told of is all that shows its progress.
    """

    signature: str
    has_progressed: bool
    streak: int
    last_step: int = 0


@dataclass(frozen=True, slots=True)
class AttemptSnapshot:
    """All that :func:`scheduler.control.attempts.decide.decide` may know.

    ``seen``: what the executor shows, by (role, index). ``lost_nodes``: nodes that have been gone for too
    long, with the time when they were last seen.
    ``refusal``: what the executor said when it refused to start a replica of this attempt; ``is_removed``: it did so
    because it had removed the attempt before. ``refused``: the same of replicas that join a gang which trains, which goes
    on without them; a sentence for each id. ``wish``: who asked to cancel or pause, and why, in words.
    ``can_change``: whether the executor can tell running replicas of another world. ``joining_since``: since when those
    that join have been doing so, by id, as far as this process knows.
    """

    now: datetime
    job: JobFacts
    attempt: AttemptFacts
    members: tuple[GangMember, ...]
    observed: Mapping[tuple[str, int], Observation]
    lost_nodes: Mapping[str, datetime] = field(default_factory=dict)
    previous: PreviousEnd | None = None
    has_checkpoint: bool = False
    refusal: str | None = None
    is_removed: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
    user_request: str = ""
    can_change_worlds: bool = False
    joining_since: Mapping[str, datetime] = field(default_factory=dict)

    def stop_grace(self, stop: Stop | None) -> timedelta:
        """From SIGTERM to SIGKILL."""
        return stop_grace(self.job.spec, stop)


def stop_grace(spec: JobSpec, stop: Stop | None) -> timedelta:
    """What replicas get from SIGTERM to SIGKILL."""
    if stop is not None and stop.grace is not None:
        return stop.grace
    return timedelta(seconds=spec.grace.stop)


@dataclass(frozen=True, slots=True)
class CompletionRules:
    """A role's part in the end of the job."""

    deciders: frozenset[str]
    policies: Mapping[str, RestartPolicy] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: JobSpec) -> CompletionRules:
        """The chief decides; without one all workers; without workers all own roles of the user."""
        roles = frozenset(spec.roles)
        if CHIEF in roles:
            deciders = frozenset({CHIEF})
        elif WORKER in roles:
            deciders = frozenset({WORKER})
        else:
            deciders = roles - SERVING_ROLES - {EVALUATOR}
        return cls(deciders, {name: _policy(name, role.restart) for name, role in spec.roles.items()})


def _policy(role: str, stated: RestartPolicy) -> RestartPolicy:
    # Nobody waits for an evaluator: its death is no reason to throw the others' training away.
    return RestartPolicy.REPLICA if role == EVALUATOR and stated is RestartPolicy.GANG else stated
