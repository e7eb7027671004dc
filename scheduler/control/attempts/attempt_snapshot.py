"""What one reconcile pass knows of an attempt, as values: rows, the executor's observations, and the time."""

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
from core.domain.jobs.volume_room import VolumeRoom
from executors.base import Observation

# Roles that serve: they never decide the end of a job and are stopped as soon as the deciding roles are done.
PS_ROLES: Final = frozenset({"ps", "scheduler"})
CHIEF: Final = "chief"
WORKER: Final = "worker"
EVALUATOR: Final = "evaluator"


class StopCause(StrEnum):
    """Why the platform ends an attempt that has not ended by itself."""

    CANCEL = "cancel"
    PAUSE = "pause"
    FAILURE = "failure"  # a replica failed, and its role's restart policy ends the gang
    DEADLINE = "deadline"
    REFUSED = "refused"  # the executor refused it
    CAPACITY = "capacity"  # the executor could not start it for too long
    REMOVED = "removed"  # the executor removed it before, as after a database was restored from a backup
    PREEMPT = "preempt"  # the planner gives its place to another job; it goes on later
    VOLUME_FULL = "volume_full"  # its output folder cannot be made: the volume has no room
    MAINTENANCE = "maintenance"  # the engine evicts a replica, as by a drain of its node


@dataclass(frozen=True, slots=True)
class Stop:
    """``is_final``: no other attempt follows, whatever the exit means.

    Of a preemption: ``grace``, the time for a last checkpoint in place of the job's own grace; ``code``, the reason of
    the preemption; ``for_job``, the job that gets the place.
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
    """A replica's row. ``exit`` is set once its end is known with its cause."""

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
    step: int = 0  # the last reported step; 0: none
    holds_resources: bool = True  # false once an elastic gang goes on without it and its place is free
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
    trial: Mapping[str, Any] | None = None  # as in ``jobs.trial``


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
    world: int = 1  # number of its current layout


@dataclass(frozen=True, slots=True)
class PreviousEnd:
    """How the previous attempt ended.

    ``streak``: consecutive ends without progress, including this one. ``last_step``: last reported step; 0 if a
    checkpoint or the run time already proves progress.
    """

    signature: str
    has_progressed: bool
    streak: int
    last_step: int = 0


@dataclass(frozen=True, slots=True)
class AttemptSnapshot:
    """All inputs of :func:`scheduler.control.attempts.decide.decide_attempt`.

    ``observed``: the executor's observations, by (role, index). ``lost_nodes``: nodes that have been gone for too long,
    with the time when they were last seen; ``draining_nodes``: nodes that are being drained. ``refusal``: the
    executor's message when it refused to start a replica of this attempt; ``is_removed``: it refused because it had
    removed the attempt before. ``refused``: the refusals of joining replicas, without which a training gang goes
    on; a sentence by replica id. ``user_request``: which user asked to cancel or pause, and why, in words.
    ``can_change_worlds``: whether the executor can send a new world to running replicas. ``joining_since``: since
    when joining replicas have been joining, by id, as far as this process knows. ``is_volume_full``: the refusal is
    that of a full volume. ``output_room``: space on the output's volume, where a replica found a disk full;
    ``None``: unknown.
    """

    now: datetime
    job: JobFacts
    attempt: AttemptFacts
    members: tuple[GangMember, ...]
    observed: Mapping[tuple[str, int], Observation]
    lost_nodes: Mapping[str, datetime] = field(default_factory=dict)
    draining_nodes: frozenset[str] = frozenset()
    previous: PreviousEnd | None = None
    has_checkpoint: bool = False
    refusal: str | None = None
    is_removed: bool = False
    is_volume_full: bool = False
    output_room: VolumeRoom | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    user_request: str = ""
    can_change_worlds: bool = False
    joining_since: Mapping[str, datetime] = field(default_factory=dict)


def stop_grace(spec: JobSpec, stop: Stop | None) -> timedelta:
    """How long replicas have from SIGTERM to SIGKILL."""
    if stop is not None and stop.grace is not None:
        return stop.grace
    return timedelta(seconds=spec.grace.stop)


@dataclass(frozen=True, slots=True)
class CompletionRules:
    """Which roles decide the end of the job, and the restart policy of each role."""

    deciders: frozenset[str]
    policies: Mapping[str, RestartPolicy] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: JobSpec) -> CompletionRules:
        """The chief decides; without a chief all workers; without workers all roles that the user defined."""
        roles = frozenset(spec.roles)
        if CHIEF in roles:
            deciders = frozenset({CHIEF})
        elif WORKER in roles:
            deciders = frozenset({WORKER})
        else:
            deciders = roles - PS_ROLES - {EVALUATOR}
        return cls(deciders, {name: _policy(name, role.restart) for name, role in spec.roles.items()})


def _policy(role: str, stated: RestartPolicy) -> RestartPolicy:
    # No replica waits for an evaluator: its death is no reason to discard the training of the others.
    return RestartPolicy.REPLICA if role == EVALUATOR and stated is RestartPolicy.GANG else stated
