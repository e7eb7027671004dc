"""The canonical job spec as frozen pydantic models.

What users write (shorthands such as ``workers: 2``, quantities, durations) is turned into this form by
:mod:`trainmaster.spec.parse`; the server stores and returns only this form.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, field_validator, model_validator

from trainmaster.spec.quantity import format_bytes, format_cpu, parse_bytes, parse_cpu_milli, parse_duration_s

# RFC 1123 label: becomes part of host and Kubernetes object names.
NAME_PATTERN: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
ROLE_PATTERN: Final = r"^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$"
ENV_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
_LABEL_KEY: Final = re.compile(
    r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
)
_LABEL_VALUE: Final = re.compile(r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")

# Order of the roles everywhere: ranks, pools of CLUSTER_SPEC, listings. Own roles follow, by name.
ROLE_ORDER: Final = ("chief", "worker", "ps", "evaluator")
MAX_REPLICAS: Final = 4096


def _cpu(value: Any) -> Any:
    return None if value is None else format_cpu(parse_cpu_milli(value))


def _bytes(value: Any) -> Any:
    return None if value is None else format_bytes(parse_bytes(value))


def _seconds(value: Any) -> Any:
    return None if value is None else parse_duration_s(value)


def _text(value: Any) -> Any:
    # YAML reads `EPOCHS: 3` as a number; an environment value and an argument are always text.
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


CpuQuantity = Annotated[str, BeforeValidator(_cpu)]
ByteQuantity = Annotated[str, BeforeValidator(_bytes)]
Seconds = Annotated[float, BeforeValidator(_seconds)]
Text = Annotated[str, BeforeValidator(_text)]
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
RoleName = Annotated[str, StringConstraints(pattern=ROLE_PATTERN)]
EnvName = Annotated[str, StringConstraints(pattern=ENV_PATTERN, max_length=256)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RestartPolicy(StrEnum):
    """What happens when a replica of the role dies with an error."""

    GANG = "gang"  # the whole gang starts again from the last checkpoint (a new attempt)
    REPLICA = "replica"  # only this replica starts again, the others go on (TensorFlow ps training takes it back)
    NEVER = "never"  # the job fails
    IGNORE = "ignore"  # the others go on without it


class Contract(StrEnum):
    """How the command is called. Every framework's environment is injected in any case."""

    DEFAULT = "default"
    UAI = "uai"  # `python <command>` with UAI Train's five arguments
    MXNET = "mxnet"  # a replica of the role `scheduler` is added, which ps-lite programs need


class TopologyLevel(StrEnum):
    NODE = "node"
    RACK = "rack"
    ZONE = "zone"


class Topology(_Model):
    """Wish for the gang's nearness: all replicas inside one domain of ``level``."""

    level: TopologyLevel
    required: bool = Field(default=False, description="Wait rather than span two domains.")


class Resources(_Model):
    """What one replica needs. A stated ``cpu`` or ``memory`` is guaranteed and is also the limit; unstated it shares."""

    cpu: CpuQuantity | None = Field(default=None, description="CPUs, like 2 or 500m.")
    memory: ByteQuantity | None = Field(default=None, description="Bytes, like 512Mi or 16Gi.")
    gpus: int = Field(default=0, ge=0, le=64, description="Whole GPUs of one replica.")
    gpu_type: tuple[str, ...] = Field(default=(), description="Accepted GPU models, best first; empty: any.")
    shm: ByteQuantity | None = Field(default=None, description="Size of /dev/shm.")

    @field_validator("gpu_type", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @property
    def cpu_milli(self) -> int | None:
        return None if self.cpu is None else parse_cpu_milli(self.cpu)

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else parse_bytes(self.memory)

    @property
    def shm_bytes(self) -> int | None:
        return None if self.shm is None else parse_bytes(self.shm)


class RoleSpec(_Model):
    replicas: int = Field(default=1, ge=1, le=MAX_REPLICAS)
    command: tuple[Text, ...] | str | None = Field(default=None, description="Instead of the job's command.")
    args: tuple[Text, ...] | None = Field(default=None, description="Instead of the job's args.")
    image: str | None = Field(default=None, description="Instead of the job's image.")
    env: dict[EnvName, Text] = Field(default_factory=dict, description="Over the job's env.")
    resources: Resources = Field(default_factory=Resources)
    processes_per_replica: int | None = Field(
        default=None, ge=1, le=256, description="Processes started with ranks; unstated: one per GPU, at least one."
    )
    restart: RestartPolicy = RestartPolicy.GANG

    @property
    def process_count(self) -> int:
        """Processes in one replica, at least 1."""
        return self.processes_per_replica or max(1, self.resources.gpus)


class Mount(_Model):
    volume: Name
    path: str = Field(default="", description="Folder inside the volume.")
    at: str = Field(description="Absolute path in the container.")
    read_only: bool = True

    @field_validator("at")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value.startswith("/") or ".." in value.split("/") or value.rstrip("/") in ("", "/data", "/proc", "/dev"):
            raise ValueError("must be an absolute path such as /mnt/set, and not /, /data, /dev or /proc")
        return value


class Grace(_Model):
    """Grace times."""

    stop: Seconds = Field(default=30.0, description="From SIGTERM to SIGKILL.")
    exit: Seconds = Field(default=30.0, description="For a process that finished its work to exit.")
    evaluator: Seconds = Field(default=60.0, description="For evaluators after the deciders are done.")
    peers: Seconds = Field(default=300.0, description="For the peers' names to appear before the start.")


class JobSpec(_Model):
    """One training job. Its spec never changes; ``clone`` makes another job from it."""

    name: Name
    project: Name = "default"
    image: str | None = Field(default=None, description="Container image; process mode needs none.")
    code: str | None = Field(
        default=None,
        pattern=r"^sha256:[0-9a-f]{64}$",
        description="Digest of an uploaded code archive, unpacked at /data.",
    )
    command: tuple[Text, ...] | str | None = Field(
        default=None, description="A list is executed as it is; a text is run by /bin/sh -c."
    )
    args: tuple[Text, ...] = ()
    env: dict[EnvName, Text] = Field(default_factory=dict)
    secrets: tuple[EnvName, ...] = Field(default=(), description="Names of project secrets, put into the environment.")
    roles: dict[RoleName, RoleSpec] = Field(min_length=1)
    input: str | None = Field(default=None, description="volume/path, read-only at /data/data.")
    output: str | None = Field(default=None, description="volume/path at /data/output; unstated: a folder of its own.")
    mounts: tuple[Mount, ...] = ()
    priority: int = Field(default=50, ge=0, le=100)
    max_run_time: Seconds | None = Field(default=None, description="Upper bound of the training time of an attempt.")
    max_wait: Seconds | None = Field(default=None, description="Expires when it waited longer in the queue.")
    max_restarts: int = Field(default=3, ge=0, le=1000)
    grace: Grace = Field(default_factory=Grace)
    ttl: Seconds | None = Field(default=None, description="Deleted this long after its end.")
    labels: dict[str, str] = Field(default_factory=dict)
    contract: Contract = Contract.DEFAULT
    sparse: bool = Field(default=False, description="TF_CONFIG of elastic ps jobs: a worker sees itself and all ps.")
    node_selector: dict[str, str] = Field(default_factory=dict)
    topology: Topology | None = None

    @field_validator("labels", "node_selector")
    @classmethod
    def _label_syntax(cls, value: dict[str, str]) -> dict[str, str]:
        for key, text in value.items():
            if not _LABEL_KEY.match(key):
                raise ValueError(
                    f"{key!r} is not a label key: letters, digits, '-', '_', '.', with an optional prefix/"
                )
            if not _LABEL_VALUE.match(text):
                raise ValueError(f"{text!r} is not a label value: at most 63 letters, digits, '-', '_', '.'")
        return value

    @field_validator("input", "output")
    @classmethod
    def _volume_path(cls, value: str | None) -> str | None:
        if value is not None:
            volume, _, path = value.partition("/")
            if not re.match(NAME_PATTERN, volume) or ".." in path.split("/"):
                raise ValueError("must be volume/path, for example datasets/digits")
        return value

    @model_validator(mode="after")
    def _whole(self) -> JobSpec:
        total = sum(role.replicas for role in self.roles.values())
        if total > MAX_REPLICAS:
            raise ValueError(f"roles: {total} replicas in total, at most {MAX_REPLICAS}")
        if not set(self.roles) - {"ps", "evaluator"}:
            raise ValueError("roles: needs a role that decides the end of the job, such as worker or chief")
        for name, limit in (("chief", 1),):
            if name in self.roles and self.roles[name].replicas > limit:
                raise ValueError(f"roles.{name}.replicas: at most {limit}")
        for name, role in self.roles.items():
            if self.contract is not Contract.UAI and not (role.command or self.command or role.image or self.image):
                raise ValueError(f"roles.{name}.command: missing; give the job a command, or an image that has one")
        return self

    def ordered_roles(self) -> tuple[tuple[str, RoleSpec], ...]:
        """Roles in rank order: chief, worker, ps, evaluator, then own roles by name."""
        return tuple((name, self.roles[name]) for name in sorted(self.roles, key=role_order))

    def role_env(self, role: str) -> dict[str, str]:
        """The user's environment of ``role``; the role's own wins over the job's."""
        return {**self.env, **self.roles[role].env}


def role_order(role: str) -> tuple[int, str]:
    """Sort key of a role's name."""
    return (ROLE_ORDER.index(role) if role in ROLE_ORDER else len(ROLE_ORDER), role)


JobState = Literal[
    "queued", "starting", "running", "paused", "cancelling", "succeeded", "failed", "cancelled", "expired"
]
