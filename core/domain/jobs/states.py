"""The states of a job, an attempt and a replica."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_terminal(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED)


class DesiredState(StrEnum):
    """What the user has asked for since the submission."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


class AttemptState(StrEnum):
    PLACED = "placed"
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"

    @property
    def is_live(self) -> bool:
        return self is not AttemptState.ENDED


class ReplicaState(StrEnum):
    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    STOPPED = "stopped"

    @property
    def is_terminal(self) -> bool:
        return self in (ReplicaState.SUCCEEDED, ReplicaState.FAILED, ReplicaState.LOST, ReplicaState.STOPPED)
