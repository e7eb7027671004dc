"""The states of a deployed model and of its serving replicas."""

from __future__ import annotations

from enum import StrEnum


class DeploymentState(StrEnum):
    """What is wanted of a deployed model. How far it is, its replicas tell."""

    ACTIVE = "active"
    FAILED = "failed"  # its first revision never got ready; nothing of it runs until it is deployed anew
    UNDEPLOYING = "undeploying"  # its replicas drain and end
    ENDED = "ended"


class ServingState(StrEnum):
    """Of one serving replica, which is one job."""

    STARTING = "starting"  # its job waits or runs, and its health route does not answer 200 (any more)
    READY = "ready"  # it gets requests
    DRAINING = "draining"  # it gets no new ones, and finishes those that it has
    ENDED = "ended"

    @property
    def is_up(self) -> bool:
        """Whether it counts as one of those that are wanted."""
        return self in (ServingState.STARTING, ServingState.READY)
