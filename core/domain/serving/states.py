"""The states of a deployed model and of its serving replicas."""

from __future__ import annotations

from enum import StrEnum


class DeploymentState(StrEnum):
    """The desired state of a deployed model; its replicas show the actual state."""

    ACTIVE = "active"
    FAILED = "failed"  # its first revision never became ready; nothing of it runs until it is redeployed
    UNDEPLOYING = "undeploying"  # its replicas drain and end
    ENDED = "ended"


class ServingState(StrEnum):
    """The state of one serving replica, which is one job."""

    STARTING = "starting"  # its job is queued or runs, and its health route does not answer 200
    READY = "ready"  # it gets requests
    DRAINING = "draining"  # it gets no new requests, and finishes the open ones
    ENDED = "ended"

    @property
    def is_up(self) -> bool:
        """Whether it counts towards the desired replicas."""
        return self in (ServingState.STARTING, ServingState.READY)
