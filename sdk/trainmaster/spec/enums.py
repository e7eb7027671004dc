"""Names that a job spec fixes: roles and their order, states, and the words of its enumerated fields."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

# Order of the roles in ranks, worker pools of CLUSTER_SPEC and listings. Custom roles follow, by name.
ROLE_ORDER: Final = ("chief", "worker", "ps", "evaluator")
# The role that `contract: mxnet` adds.
DMLC_SCHEDULER_ROLE: Final = "scheduler"
MAX_REPLICAS: Final = 4096
# Auxiliary roles: no GPUs and no ranks unless their own entry says so; their exits never decide the job's result.
NON_DECIDER_ROLES: Final = frozenset({"ps", "evaluator", DMLC_SCHEDULER_ROLE})
JobState = Literal[
    "queued", "starting", "running", "paused", "cancelling", "succeeded", "failed", "cancelled", "expired"
]


class RestartPolicy(StrEnum):
    """What happens when a replica of the role exits with an error."""

    GANG = "gang"  # the whole gang restarts from the last checkpoint (a new attempt)
    REPLICA = "replica"  # only this replica restarts, the others continue (TensorFlow ps training readmits it)
    NEVER = "never"  # the job fails
    IGNORE = "ignore"  # the others continue without it


class Warm(StrEnum):
    """Whether processes may be forked from a warm Python process that has already imported the framework."""

    AUTO = "auto"
    NEVER = "never"


class Launcher(StrEnum):
    """What starts the processes of a gang's replicas."""

    AUTO = "auto"  # the launcher in the command, else the platform
    NONE = "none"  # replicas that are independent of each other: launchers in the command are not completed
    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"
    COMPOSER = "composer"
    MPIRUN = "mpirun"
    HOROVODRUN = "horovodrun"
    RAY = "ray"  # once, by rank 0, in a Ray cluster of all replicas


class Contract(StrEnum):
    """How the command is called. The environment variables of every framework are set in any case."""

    DEFAULT = "default"
    UAI = "uai"  # `python <command>` with UAI Train's five arguments, one process per replica
    MXNET = "mxnet"  # adds a replica of the role `scheduler`, which ps-lite programs need
    SERVING = "serving"  # the replicas are HTTP servers and get the AIP_* variables of Vertex AI's serving containers


class ServerPlacement(StrEnum):
    """Placement of parameter servers relative to the gang's other replicas."""

    BESIDE = "beside"  # affinity: on the nodes of the gang's other replicas, as far as they have room
    APART = "apart"  # anti-affinity: on nodes without any other replica of the gang


class TopologyLevel(StrEnum):
    NODE = "node"
    RACK = "rack"
    ZONE = "zone"


def role_order(role: str) -> tuple[int, str]:
    """Sort key for role names."""
    return (ROLE_ORDER.index(role) if role in ROLE_ORDER else len(ROLE_ORDER), role)
