"""The canonical job spec as frozen pydantic models.

:mod:`trainmaster.spec.parse` turns what users write (shorthands such as ``workers: 2``, quantities, durations) into
this form and checks the rules between fields (:mod:`trainmaster.spec.rules`); the server stores and returns only this
form. Only ``parse_spec`` rejects unknown fields, so that an older client can read the spec of a newer server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Required, TypeAlias, TypedDict, Unpack

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainmaster.spec.enums import (
    MAX_REPLICAS,
    Contract,
    Launcher,
    RestartPolicy,
    ServerPlacement,
    TopologyLevel,
    Warm,
    role_order,
)
from trainmaster.spec.fields import (
    ByteQuantity,
    CodeDigest,
    Command,
    CondaName,
    CpuQuantity,
    DisplayName,
    EnvName,
    Flag,
    Folder,
    GpuModels,
    Gpus,
    Image,
    Integer,
    InterpreterPath,
    LabelKey,
    LabelValue,
    LinePatterns,
    MountPoint,
    Name,
    Requirements,
    RoleName,
    Seconds,
    Text,
    VolumePath,
    Words,
    choice,
    integer,
)
from trainmaster.spec.priorities import Priority
from trainmaster.spec.quantity import parse_bytes, parse_cpu_milli
from trainmaster.spec.shorthand import Processes, expand_keywords

__all__ = ["Environment", "Grace", "JobSpec", "Mount", "Resources", "RoleSpec", "SpecKeywords", "Topology"]

# Limit of roles, mounts, secrets and labels, which are compared pairwise; no real job needs as many.
MAX_ENTRIES: Final = 256


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Topology(_Model):
    """Topology affinity: all replicas of the gang inside one domain of ``level``."""

    level: Annotated[TopologyLevel, choice(TopologyLevel)] = Field(
        description="Topology domain for the whole gang: node, rack or zone."
    )
    required: Flag = Field(
        default=False, description="Whether the job waits until one domain has room; otherwise it is a preference."
    )


class Resources(_Model):
    """Resources of one replica. ``cpu`` and ``memory`` are both request and limit; without them the replica shares."""

    cpu: CpuQuantity | None = Field(default=None, description="CPUs, like 2, 0.5 or 500m.", examples=["500m", 4])
    memory: ByteQuantity | None = Field(
        default=None, description="Bytes, like 512Mi or 16Gi; at least 1Mi.", examples=["16Gi"]
    )
    gpus: Gpus = Field(
        default=0,
        description="GPUs per replica, or a fraction of a GPU shared with other replicas, in thousandths.",
        examples=[1, 0.5],
    )
    gpu_type: GpuModels = Field(
        default=(),
        description="Accepted GPU models, in order of preference; default: any.",
        examples=["A100", ["H100", "A100"]],
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
        """GPU devices visible to one replica; a fraction counts as one device."""
        return 1 if 0 < self.gpus < 1 else int(self.gpus)

    @property
    def gpu_milli(self) -> int:
        """Fraction of a GPU in thousandths; 0 for whole GPUs and for none."""
        return round(self.gpus * 1000) if 0 < self.gpus < 1 else 0

    @property
    def shm_bytes(self) -> int | None:
        return None if self.shm is None else parse_bytes(self.shm)


class RoleSpec(_Model):
    """One role of the gang: ``replicas`` identical replicas."""

    replicas: Integer = Field(
        default=1, ge=1, le=MAX_REPLICAS, description="Number of replicas; a chief has at most one.", examples=[2]
    )
    min_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS), integer] | None = Field(
        default=None,
        description="Makes workers elastic: the gang runs with `min_replicas` to `replicas` workers, and continues "
        "when one is lost.",
        examples=[2],
    )
    command: Command | None = Field(
        default=None, description="Overrides the job's command.", examples=["python serve.py"]
    )
    args: Words | None = Field(default=None, description="Overrides the job's args.", examples=[["--cache", "8Gi"]])
    image: Image | None = Field(default=None, description="Overrides the job's image.")
    env: dict[EnvName, Text] = Field(
        default_factory=dict, description="Merged over the job's env.", examples=[{"OMP_NUM_THREADS": 4}]
    )
    resources: Resources = Field(default_factory=Resources, description="Resources of one replica.")
    processes_per_replica: Processes | None = Field(
        default=None,
        description="Processes with a rank per replica; default: one per GPU, at least one.",
        examples=[4],
    )
    placement: Annotated[ServerPlacement, choice(ServerPlacement)] = Field(
        default=ServerPlacement.BESIDE,
        description="Only for ps: `beside` places them on the workers' nodes as far as there is room, `apart` on nodes "
        "without any other replica of the job.",
    )
    spread: Flag = Field(default=False, description="Only for ps: at most one on each node.")
    restart: Annotated[RestartPolicy, choice(RestartPolicy)] = Field(
        default=RestartPolicy.GANG,
        description="When a replica of the role exits with an error: `gang` restarts the whole gang, `replica` only "
        "this replica, `never` fails the job, `ignore` continues without it.",
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
    """A volume's folder mounted into every replica."""

    volume: Name = Field(description="Name of a registered volume.", examples=["datasets"])
    path: Folder = Field(
        default="", description="Folder inside the volume; default: the whole volume.", examples=["words"]
    )
    at: MountPoint = Field(
        description="Absolute path in the container; not /data/data, /data/output or a system folder.",
        examples=["/mnt/words"],
    )
    read_only: Flag = Field(default=True, description="Whether the mount is read-only.")


class Environment(_Model):
    """The Python of the job's commands, on the machine or in the image where the replica runs."""

    python: InterpreterPath | None = Field(
        default=None, description="Absolute path of the interpreter `python`.", examples=["/usr/bin/python3.12"]
    )
    venv: InterpreterPath | None = Field(
        default=None, description="Absolute path of a virtual environment.", examples=["/opt/venv"]
    )
    conda: CondaName | None = Field(default=None, description="Name of a conda environment.", examples=["vision"])
    requirements: Requirements = Field(
        default=(),
        description="Lines of a requirements file. The platform installs them once, in a layer on this Python, and "
        "jobs with the same requirements share it.",
        examples=[["einops", "numpy>=2"]],
    )


class Grace(_Model):
    """Grace periods: how long the platform waits before it intervenes."""

    stop: Seconds = Field(default=30.0, description="Time between SIGTERM and SIGKILL.", examples=["30s"])
    exit: Seconds = Field(
        default=30.0,
        description="Time to exit for a process that has finished its work, and for the other roles once the chief, or "
        "the workers, have succeeded.",
    )
    evaluator: Seconds = Field(
        default=60.0, description="Time for evaluators to finish once the chief, or the workers, have succeeded."
    )
    peers: Seconds = Field(
        default=300.0, description="Time for the peers' host names to become resolvable before the start."
    )


class JobSpec(_Model):
    """One training job. A job's spec never changes; ``clone`` makes another job from it."""

    if TYPE_CHECKING:
        # The constructor accepts more than the fields: it turns shorthands into roles, as in
        # JobSpec(name="digits", command="python train.py", workers=2).
        def __init__(self, **fields: Unpack[SpecKeywords]) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _expanded(cls, data: Any) -> Any:
        """``data`` with its shorthands turned into roles."""
        return expand_keywords(data) if isinstance(data, dict) else data

    name: DisplayName = Field(description="Display name of the job; need not be unique.", examples=["digits"])
    project: Name = Field(default="default", description="Project of the job.")
    image: Image | None = Field(
        default=None,
        description="Container image; the process executor needs none.",
        examples=["pytorch/pytorch:2.13.0"],
    )
    code: CodeDigest | None = Field(
        default=None,
        description="Digest of an uploaded code archive, unpacked at /data; `trainmaster run` fills it in.",
    )
    command: Command | None = Field(
        default=None,
        description="Command, run in /data. A list is executed directly; a text is run by /bin/sh -c.",
        examples=["python train.py", ["python", "train.py"]],
    )
    args: Words = Field(default=(), description="Appended to the command.", examples=[["--epochs", 3, "--lr", 0.01]])
    env: dict[EnvName, Text] = Field(
        default_factory=dict,
        description="Environment variables; they override the platform's. Names beginning with TRAINMASTER_ are "
        "reserved.",
        examples=[{"LEARNING_RATE": 0.01}],
    )
    environment: Environment | None = Field(
        default=None,
        description="The Python of the commands; default: the platform's own, or the image's.",
        examples=[{"requirements": ["einops"]}],
    )
    secrets: tuple[EnvName, ...] = Field(
        default=(),
        max_length=MAX_ENTRIES,
        description="Names of project secrets to set as environment variables.",
        examples=[["WANDB_API_KEY"]],
    )
    roles: dict[RoleName, RoleSpec] = Field(
        min_length=1,
        max_length=MAX_ENTRIES,
        description="Roles of the gang: chief, worker, ps, evaluator, or custom names. A number is short for "
        "`replicas`.",
        examples=[{"worker": {"replicas": 2, "resources": {"gpus": 1}}, "ps": 1}],
    )
    input: VolumePath | None = Field(
        default=None,
        description="Input as volume/path, mounted read-only at /data/data.",
        examples=["datasets/digits"],
    )
    output: VolumePath | None = Field(
        default=None,
        description="Output as volume/path, mounted at /data/output; default: a new folder for the job.",
        examples=["output/team/digits"],
    )
    mounts: tuple[Mount, ...] = Field(default=(), max_length=MAX_ENTRIES, description="Additional mounts.")
    priority: Priority = Field(
        default=50,
        ge=0,
        le=100,
        description="`low` (25), `normal` (50), `high` (75), `urgent` (100), or a number from 0 to 100; higher "
        "priorities start first.",
        examples=["high", 60],
    )
    preemptible: Flag = Field(
        default=True,
        description="Whether the scheduler may preempt the job: its attempt ends, the job is queued again and resumes "
        "from its last checkpoint.",
    )
    max_run_time: Seconds | None = Field(
        default=None, description="Maximum training time of an attempt.", examples=["12h"]
    )
    max_wait: Seconds | None = Field(
        default=None, description="Maximum time in the queue, after which the job expires.", examples=["2d"]
    )
    max_restarts: Integer = Field(
        default=3,
        ge=0,
        le=1000,
        description="Maximum restarts after errors of the program; restarts caused by the platform do not count.",
    )
    grace: Grace = Field(default_factory=Grace, description="Grace periods.")
    ttl: Seconds | None = Field(
        default=None, description="Time after the job's end until it is deleted; default: never.", examples=["7d"]
    )
    labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict,
        max_length=MAX_ENTRIES,
        description="Labels, to find and group jobs.",
        examples=[{"team": "vision"}],
    )
    metric_patterns: LinePatterns = Field(
        default=(),
        description="Patterns of log lines that contain metrics: text with names in braces in place of numbers; "
        "`{step}`, "
        "`{steps}`, `{epoch}` and `{epochs}` report the progress. Default: `name=number` in lines with a step or an "
        "epoch.",
        examples=["Epoch {epoch}/{epochs} loss {loss}"],
    )
    contract: Annotated[Contract, choice(Contract)] = Field(
        default=Contract.DEFAULT,
        description="How the command is called: `default`; `uai`: `python <command>` with UAI Train's arguments; "
        "`mxnet`: adds the scheduler replica that ps-lite programs need; `serving`: sets AIP_HTTP_PORT and "
        "AIP_STORAGE_URI for model servers.",
    )
    launcher: Annotated[Launcher, choice(Launcher)] = Field(
        default=Launcher.AUTO,
        description="What starts the processes: `auto`: the launcher in the command, else the platform; a launcher's "
        "name puts it before a plain command (`ray`: the command runs once, in a Ray cluster of all replicas); `none`: "
        "the replicas are independent of each other, and a launcher in the command stays as it is.",
    )
    warm: Annotated[Warm, choice(Warm)] = Field(
        default=Warm.AUTO,
        description="`auto`: without an image, a process may be forked from a warm Python process that has already "
        "imported the framework; `never`: every process is a new Python.",
    )
    sparse: Flag = Field(
        default=False, description="Sparse TF_CONFIG for elastic ps jobs: a worker sees only itself and every ps."
    )
    node_selector: dict[LabelKey, LabelValue] = Field(
        default_factory=dict,
        max_length=MAX_ENTRIES,
        description="Labels that a node must have.",
        examples=[{"pool": "a100"}],
    )
    topology: Topology | None = Field(
        default=None, description="Topology affinity of the gang.", examples=[{"level": "rack"}]
    )

    def ordered_roles(self) -> tuple[tuple[str, RoleSpec], ...]:
        """Roles in rank order: chief, worker, ps, evaluator, then custom roles by name."""
        return tuple((name, self.roles[name]) for name in sorted(self.roles, key=role_order))

    @property
    def elastic_role(self) -> str | None:
        """Name of the elastic role; ``None``: the number of replicas is fixed."""
        return next((name for name, role in self.roles.items() if role.is_elastic), None)

    def role_env(self, role: str) -> dict[str, str]:
        """The user's environment variables of ``role``; the role's override the job's."""
        return {**self.env, **self.roles[role].env}


Word: TypeAlias = str | int | float | bool


class SpecKeywords(TypedDict, total=False):
    """Keyword arguments of ``JobSpec(…)``.

    A test proves that they match the fields of ``JobSpec`` and ``Shorthands``.
    """

    name: Required[str]
    project: str
    image: str | None
    code: str | None
    command: str | Sequence[Word] | None
    args: Sequence[Word]
    env: Mapping[str, Word]
    environment: Environment | Mapping[str, Any] | None
    secrets: Sequence[str]
    roles: Mapping[str, RoleSpec | Mapping[str, Any] | int | None]
    input: str | None
    output: str | None
    mounts: Sequence[Mount | Mapping[str, Any]]
    priority: int | str
    preemptible: bool
    max_run_time: str | float | None
    max_wait: str | float | None
    max_restarts: int
    grace: Grace | Mapping[str, str | float]
    ttl: str | float | None
    labels: Mapping[str, Word]
    metric_patterns: str | Sequence[str]
    contract: Contract | str
    launcher: Launcher | str
    warm: Warm | str
    sparse: bool
    node_selector: Mapping[str, Word]
    topology: Topology | Mapping[str, Any] | None
    # shorthands
    workers: int | Mapping[str, int] | None
    ps: int | None
    chief: int | bool | None
    evaluator: int | bool | None
    evaluators: int | bool | None
    gpus: float | None
    gpu_type: str | Sequence[str] | None
    cpu: str | float | None
    memory: str | int | None
    shm: str | int | None
    processes_per_replica: int | None
