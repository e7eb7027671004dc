"""The canonical job spec as frozen pydantic models.

What users write (shorthands such as ``workers: 2``, quantities, durations) is turned into this form by
:mod:`trainmaster.spec.parse`, which also checks what no single field can say (:mod:`trainmaster.spec.rules`); the
server stores and returns only this form. Unknown fields are mistakes to ``parse_spec`` alone: a client of today reads
the spec of a server of tomorrow.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Unpack

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainmaster.spec.fields import (
    ENV_PATTERN,
    NAME_PATTERN,
    ROLE_PATTERN,
    ByteQuantity,
    CodeDigest,
    Command,
    CpuQuantity,
    EnvName,
    Flag,
    Folder,
    GpuModels,
    Image,
    LabelKey,
    LabelValue,
    LinePatterns,
    MountPoint,
    Name,
    RoleName,
    Seconds,
    Text,
    VolumePath,
    Whole,
    Words,
    choice,
    count,
    span,
    whole,
)
from trainmaster.spec.gpus import Gpus
from trainmaster.spec.priorities import Priority
from trainmaster.spec.quantity import parse_bytes, parse_cpu_milli

if TYPE_CHECKING:
    from trainmaster.spec.keywords import SpecKeywords

__all__ = [
    "DMLC_SCHEDULER_ROLE",
    "ENV_PATTERN",
    "MAX_REPLICAS",
    "NAME_PATTERN",
    "ROLE_ORDER",
    "ROLE_PATTERN",
    "Contract",
    "EnvName",
    "Grace",
    "JobSpec",
    "JobState",
    "Mount",
    "Name",
    "Resources",
    "RestartPolicy",
    "RoleName",
    "RoleSpec",
    "ServerPlacement",
    "Shorthands",
    "Text",
    "Topology",
    "TopologyLevel",
    "Warm",
    "role_order",
]

# Order of the roles everywhere: ranks, pools of CLUSTER_SPEC, listings. Own roles follow, by name.
ROLE_ORDER: Final = ("chief", "worker", "ps", "evaluator")
# The role that `contract: mxnet` adds.
DMLC_SCHEDULER_ROLE: Final = "scheduler"
MAX_REPLICAS: Final = 4096
MAX_PROCESSES: Final = 256
# Roles, mounts, secrets, labels: no honest job has as many, and each is compared with the others.
MAX_ENTRIES: Final = 256


# The bounds stand before the reader: only so do they reach the schema of a field that may be empty.
Processes = Annotated[int, Field(ge=1, le=MAX_PROCESSES), whole]
_Count = Annotated[int, Field(ge=0, le=MAX_REPLICAS), count(MAX_REPLICAS)]
_Replicas = Annotated[int, Field(ge=0, le=MAX_REPLICAS), whole]
_Workers = Annotated[int | tuple[int, int], span(MAX_REPLICAS)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class RestartPolicy(StrEnum):
    """What happens when a replica of the role dies with an error."""

    GANG = "gang"  # the whole gang starts again from the last checkpoint (a new attempt)
    REPLICA = "replica"  # only this replica starts again, the others go on (TensorFlow ps training takes it back)
    NEVER = "never"  # the job fails
    IGNORE = "ignore"  # the others go on without it


class Warm(StrEnum):
    """Whether processes may be forked from a Python that has imported the framework already."""

    AUTO = "auto"
    NEVER = "never"


class Contract(StrEnum):
    """How the command is called. Every framework's environment is injected in any case."""

    DEFAULT = "default"
    UAI = "uai"  # `python <command>` with UAI Train's five arguments, one process per replica
    MXNET = "mxnet"  # a replica of the role `scheduler` is added, which ps-lite programs need
    SERVING = "serving"  # the replicas are HTTP servers, and get the AIP_* variables of Vertex AI's serving containers


class ServerPlacement(StrEnum):
    """Where parameter servers go."""

    BESIDE = "beside"  # on nodes of the gang's other replicas, as far as there is room
    APART = "apart"  # on nodes without any other replica of the gang


class TopologyLevel(StrEnum):
    NODE = "node"
    RACK = "rack"
    ZONE = "zone"


class Topology(_Model):
    """Wish for the gang's nearness: all replicas inside one domain of ``level``."""

    level: Annotated[TopologyLevel, choice(TopologyLevel)] = Field(
        description="The domain that should hold the whole gang: node, rack or zone."
    )
    required: Flag = Field(default=False, description="Wait rather than span two domains.")


class Resources(_Model):
    """What one replica needs. A stated ``cpu`` or ``memory`` is guaranteed and is also the limit; unstated it shares."""

    cpu: CpuQuantity | None = Field(default=None, description="CPUs, like 2, 0.5 or 500m.", examples=["500m", 4])
    memory: ByteQuantity | None = Field(
        default=None, description="Bytes, like 512Mi or 16Gi; at least 1Mi.", examples=["16Gi"]
    )
    gpus: Gpus = Field(
        default=0,
        description="GPUs of one replica, or the part of one that it shares with others, in thousandths.",
        examples=[1, 0.5],
    )
    gpu_type: GpuModels = Field(
        default=(), description="Accepted GPU models, best first; unstated: any.", examples=["A100", ["H100", "A100"]]
    )
    shm: ByteQuantity | None = Field(default=None, description="Size of /dev/shm, like 2Gi.", examples=["2Gi"])

    @property
    def cpu_milli(self) -> int | None:
        return None if self.cpu is None else parse_cpu_milli(self.cpu)

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else parse_bytes(self.memory)

    @property
    def device_count(self) -> int:
        """Devices that one replica sees: one, where it has a part of it."""
        return 1 if 0 < self.gpus < 1 else int(self.gpus)

    @property
    def gpu_milli(self) -> int:
        """The part of one GPU, in thousandths; 0 for whole ones, and for none."""
        return round(self.gpus * 1000) if 0 < self.gpus < 1 else 0

    @property
    def shm_bytes(self) -> int | None:
        return None if self.shm is None else parse_bytes(self.shm)


class RoleSpec(_Model):
    """One role of the gang: ``replicas`` equal members."""

    replicas: Whole = Field(default=1, ge=1, le=MAX_REPLICAS, description="How many. At most one chief.", examples=[2])
    min_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS), whole] | None = Field(
        default=None,
        description="Makes workers elastic: the gang runs with this many up to `replicas`, and goes on when one is lost.",
        examples=[2],
    )
    command: Command | None = Field(
        default=None, description="Instead of the job's command.", examples=["python serve.py"]
    )
    args: Words | None = Field(default=None, description="Instead of the job's args.", examples=[["--cache", "8Gi"]])
    image: Image | None = Field(default=None, description="Instead of the job's image.")
    env: dict[EnvName, Text] = Field(
        default_factory=dict, description="Laid over the job's env.", examples=[{"OMP_NUM_THREADS": 4}]
    )
    resources: Resources = Field(default_factory=Resources, description="What one replica needs.")
    processes_per_replica: Processes | None = Field(
        default=None,
        description="Processes started with ranks; unstated: one per GPU, at least one.",
        examples=[4],
    )
    placement: Annotated[ServerPlacement, choice(ServerPlacement)] = Field(
        default=ServerPlacement.BESIDE,
        description="Of ps alone: `beside` the workers, as far as there is room; `apart`, on nodes without any other "
        "replica of the job.",
    )
    spread: Flag = Field(default=False, description="Of ps alone: no two of them on one node.")
    restart: Annotated[RestartPolicy, choice(RestartPolicy)] = Field(
        default=RestartPolicy.GANG,
        description="When one of these dies with an error: `gang` starts the whole gang again, `replica` only this one, "
        "`never` fails the job, `ignore` goes on without it.",
    )

    @property
    def is_elastic(self) -> bool:
        """Whether the number of replicas may change while the gang runs."""
        return self.min_replicas is not None and self.min_replicas < self.replicas

    @property
    def process_count(self) -> int:
        """Processes in one replica, at least 1."""
        return self.processes_per_replica or max(1, self.resources.device_count)


class Mount(_Model):
    """A folder of a volume inside every replica."""

    volume: Name = Field(description="Name of a registered volume.", examples=["datasets"])
    path: Folder = Field(default="", description="Folder inside the volume; unstated: all of it.", examples=["words"])
    at: MountPoint = Field(
        description="Absolute path in the container; not /data/data, /data/output or a system folder.",
        examples=["/mnt/words"],
    )
    read_only: Flag = Field(default=True, description="Whether writing is refused.")


class Grace(_Model):
    """How long the platform waits before it ends something itself."""

    stop: Seconds = Field(default=30.0, description="From SIGTERM to SIGKILL.", examples=["30s"])
    exit: Seconds = Field(
        default=30.0,
        description="To exit: for a process that finished its work, and for those that do not decide after the deciders are done.",
    )
    evaluator: Seconds = Field(default=60.0, description="For evaluators after the deciders are done.")
    peers: Seconds = Field(default=300.0, description="For the peers' names to appear before the start.")


class JobSpec(_Model):
    """One training job. Its spec never changes; ``clone`` makes another job from it."""

    if TYPE_CHECKING:
        # What a program may write is wider than what the fields hold afterwards: shorthands become roles, as in
        # JobSpec(name="digits", command="python train.py", workers=2).
        def __init__(self, **fields: Unpack[SpecKeywords]) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _expanded(cls, data: Any) -> Any:
        """``data`` with its shorthands turned into roles."""
        from trainmaster.spec.shorthand import expand_keywords

        return expand_keywords(data) if isinstance(data, dict) else data

    name: Name = Field(description="What people call the job; need not be unique.", examples=["digits"])
    project: Name = Field(default="default", description="The project that it belongs to.")
    image: Image | None = Field(
        default=None, description="Container image; plain processes need none.", examples=["pytorch/pytorch:2.13.0"]
    )
    code: CodeDigest | None = Field(
        default=None,
        description="Digest of an uploaded code archive, unpacked at /data; `trainmaster run` fills it in.",
    )
    command: Command | None = Field(
        default=None,
        description="What to run in /data. A list is executed as it is; a text is run by /bin/sh -c.",
        examples=["python train.py", ["python", "train.py"]],
    )
    args: Words = Field(default=(), description="Appended to the command.", examples=[["--epochs", 3, "--lr", 0.01]])
    env: dict[EnvName, Text] = Field(
        default_factory=dict,
        description="Environment variables; they win over the platform's. Names that begin with TRAINMASTER_ are taken.",
        examples=[{"LEARNING_RATE": 0.01}],
    )
    secrets: tuple[EnvName, ...] = Field(
        default=(),
        max_length=MAX_ENTRIES,
        description="Names of project secrets, put into the environment.",
        examples=[["WANDB_API_KEY"]],
    )
    roles: dict[RoleName, RoleSpec] = Field(
        min_length=1,
        max_length=MAX_ENTRIES,
        description="The gang: chief, worker, ps, evaluator, or names of your own. A number is short for its replicas.",
        examples=[{"worker": {"replicas": 2, "resources": {"gpus": 1}}, "ps": 1}],
    )
    input: VolumePath | None = Field(
        default=None, description="volume/path, read-only at /data/data.", examples=["datasets/digits"]
    )
    output: VolumePath | None = Field(
        default=None,
        description="volume/path at /data/output; unstated: a folder of its own.",
        examples=["output/team/digits"],
    )
    mounts: tuple[Mount, ...] = Field(default=(), max_length=MAX_ENTRIES, description="More folders of volumes.")
    priority: Priority = Field(
        default=50,
        ge=0,
        le=100,
        description="`low` (25), `normal` (50), `high` (75), `urgent` (100), or a number from 0 to 100; the largest starts first.",
        examples=["high", 60],
    )
    preemptible: Flag = Field(
        default=True,
        description="Whether the platform may end an attempt to give its place to others; the job then waits again, and "
        "goes on from its last checkpoint.",
    )
    max_run_time: Seconds | None = Field(
        default=None, description="Upper bound of an attempt's training time.", examples=["12h"]
    )
    max_wait: Seconds | None = Field(
        default=None, description="The job expires when it waited longer in the queue.", examples=["2d"]
    )
    max_restarts: Whole = Field(
        default=3, ge=0, le=1000, description="Restarts after errors of the program; what the platform caused is free."
    )
    grace: Grace = Field(default_factory=Grace, description="How long the platform waits before it ends something.")
    ttl: Seconds | None = Field(
        default=None, description="The job is deleted this long after its end.", examples=["7d"]
    )
    labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict,
        max_length=MAX_ENTRIES,
        description="Your own marks, for finding jobs again.",
        examples=[{"team": "vision"}],
    )
    metric_patterns: LinePatterns = Field(
        default=(),
        description="Lines of the log that metrics are read from: text, with names in braces where numbers stand; `{step}`, "
        "`{steps}`, `{epoch}` and `{epochs}` tell the progress. Unstated: `name=number` in lines that name a step or epoch.",
        examples=["Epoch {epoch}/{epochs} loss {loss}"],
    )
    contract: Annotated[Contract, choice(Contract)] = Field(
        default=Contract.DEFAULT,
        description="How the command is called: `default`; `uai`: `python <command>` with UAI Train's arguments; `mxnet`: "
        "adds the scheduler replica that ps-lite programs need; `serving`: sets AIP_HTTP_PORT and AIP_STORAGE_URI for HTTP "
        "servers of models.",
    )
    warm: Annotated[Warm, choice(Warm)] = Field(
        default=Warm.AUTO,
        description="`auto`: without an image, a process may be forked from a Python that has imported the framework "
        "already; `never`: every process is executed anew.",
    )
    sparse: Flag = Field(
        default=False, description="TF_CONFIG of elastic ps jobs: a worker sees only itself and every ps."
    )
    node_selector: dict[LabelKey, LabelValue] = Field(
        default_factory=dict,
        max_length=MAX_ENTRIES,
        description="Only nodes that carry all these labels.",
        examples=[{"pool": "a100"}],
    )
    topology: Topology | None = Field(
        default=None, description="Wish for the gang's nearness.", examples=[{"level": "rack"}]
    )

    def ordered_roles(self) -> tuple[tuple[str, RoleSpec], ...]:
        """Roles in rank order: chief, worker, ps, evaluator, then own roles by name."""
        return tuple((name, self.roles[name]) for name in sorted(self.roles, key=role_order))

    @property
    def elastic_role(self) -> str | None:
        """The role whose replicas may change in number; ``None``: the gang is always whole."""
        return next((name for name, role in self.roles.items() if role.is_elastic), None)

    def role_env(self, role: str) -> dict[str, str]:
        """The user's environment of ``role``; the role's own wins over the job's."""
        return {**self.env, **self.roles[role].env}


class Shorthands(_Model):
    """What users may write at the top instead of ``roles``; the canonical form has none of these."""

    workers: _Workers | None = Field(
        default=None,
        description="Replicas of the role worker. A span makes the gang elastic: it runs with as many as there is place for.",
        examples=[2, {"min": 2, "max": 4}],
    )
    ps: _Replicas | None = Field(default=None, description="Replicas of the role ps.")
    chief: Annotated[int, Field(ge=0, le=1), count(1)] | None = Field(
        default=None, description="true: one replica of the role chief."
    )
    evaluator: _Count | None = Field(default=None, description="true or a number: replicas of the role evaluator.")
    evaluators: _Count | None = Field(default=None, description="The same as evaluator.")
    gpus: Gpus | None = Field(
        default=None,
        description="GPUs of each chief, worker and replica of an own role, or the part of one.",
        examples=[1, 0.5],
    )
    gpu_type: GpuModels | None = Field(default=None, description="Accepted GPU models of all roles that have GPUs.")
    cpu: CpuQuantity | None = Field(default=None, description="CPUs of each replica of every role.")
    memory: ByteQuantity | None = Field(default=None, description="Memory of each replica of every role.")
    shm: ByteQuantity | None = Field(default=None, description="Size of /dev/shm of each replica of every role.")
    processes_per_replica: Processes | None = Field(
        default=None, description="Processes of each chief, worker and replica of an own role."
    )


def role_order(role: str) -> tuple[int, str]:
    """Sort key of a role's name."""
    return (ROLE_ORDER.index(role) if role in ROLE_ORDER else len(ROLE_ORDER), role)


JobState = Literal[
    "queued", "starting", "running", "paused", "cancelling", "succeeded", "failed", "cancelled", "expired"
]
