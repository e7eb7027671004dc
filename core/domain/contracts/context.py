"""The inputs of a contract: spec, layout, replica, and a few facts of the attempt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from trainmaster.spec import Contract, JobSpec

from core.domain.contracts.launcher import starts_own_processes, with_launcher
from core.domain.ids import AttemptId, JobId
from core.domain.jobs.layout import Layout, ReplicaAddress

# Roles without ranks in an all-equal world (torch, Horovod, MPI, XGBoost, JAX).
_UNRANKED_ROLES: Final = frozenset({"ps", "evaluator"})
# The scheduler role of ps-lite programs such as MXNet; added by `contract: mxnet`.
DMLC_SCHEDULER: Final = "scheduler"


@dataclass(frozen=True, slots=True)
class Paths:
    """The replica's three folders: fixed, unless the node cannot mount them there."""

    work: str = "/data"
    data: str = "/data/data"
    output: str = "/data/output"

    @property
    def own(self) -> str:
        """The folder of the platform's own files."""
        return f"{self.work}/.trainmaster"


@dataclass(frozen=True, slots=True)
class TrialContext:
    """The trial that an attempt's job runs."""

    study_id: str
    study: str
    number: int
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AttemptContext:
    """Facts of an attempt that the layout does not hold.

    ``token``: the attempt's own, for programs that read it from the environment. ``resume_from``: absolute path of a
    checkpoint as the replica sees it. ``token_file`` and ``report_file``: paths as the replica sees them; by default
    under ``paths.own``. ``trial`` only for a trial. ``traceparent``: the attempt's W3C trace context,
    where traces are exported.
    """

    job_id: JobId
    job_name: str
    attempt_id: AttemptId
    attempt_number: int
    project: str
    api_url: str | None = None
    resume_from: str | None = None
    trial: TrialContext | None = None
    region: str = "local"
    token: str = field(default="", repr=False)
    token_file: str = ""
    report_file: str = ""
    traceparent: str | None = None
    paths: Paths = field(default_factory=Paths)

    @property
    def study_id(self) -> str | None:
        return None if self.trial is None else self.trial.study_id

    @property
    def trial_id(self) -> str | None:
        """The trial's number, as text."""
        return None if self.trial is None else str(self.trial.number)


@dataclass(frozen=True, slots=True)
class Member:
    """A replica with ranks. ``first_rank``: of its local process 0."""

    address: ReplicaAddress
    node_rank: int
    first_rank: int
    processes: int


@dataclass(frozen=True, slots=True)
class World:
    """All ranks, chief first, then workers."""

    members: tuple[Member, ...]

    @property
    def size(self) -> int:
        """Processes of all members."""
        return sum(member.processes for member in self.members)

    @property
    def root(self) -> ReplicaAddress:
        """The replica of rank 0."""
        return self.members[0].address

    def member(self, replica: ReplicaAddress) -> Member | None:
        """``None`` for a replica without a rank, such as a ps."""
        return next(
            (m for m in self.members if m.address.role == replica.role and m.address.index == replica.index), None
        )


def world_of(spec: JobSpec, layout: Layout) -> World:
    """The ranks of ``layout``: chief and workers or, without these, the custom roles by name.

    A replica whose command starts its processes itself (``torchrun``, ``mpirun``) counts as one process.
    """
    roles = ranked_roles(r.role for r in layout.replicas)
    ranked = [r for r in layout.replicas if r.role in roles]
    launched = {
        role
        for role in {r.role for r in ranked}
        if starts_own_processes(with_launcher(_command(spec, role), spec.launcher))
    }
    members = []
    rank = 0
    for node_rank, address in enumerate(ranked):
        processes = 1 if address.role in launched else max(1, address.processes)
        members.append(Member(address, node_rank, rank, processes))
        rank += processes
    return World(tuple(members))


def ranked_roles(roles: Iterable[str]) -> frozenset[str]:
    """The roles of a gang whose replicas have ranks: see :func:`world_of`."""
    present = frozenset(roles)
    return present & {"chief", "worker"} or present - _UNRANKED_ROLES - {DMLC_SCHEDULER}


def _command(spec: JobSpec, role: str) -> tuple[str, ...] | str | None:
    return spec.roles[role].command if spec.roles[role].command is not None else spec.command


@dataclass(frozen=True)
class ReplicaContext:
    """One replica's place in the gang: everything that a contract may use."""

    spec: JobSpec
    layout: Layout
    replica: ReplicaAddress
    context: AttemptContext

    @cached_property
    def world(self) -> World:
        return world_of(self.spec, self.layout)

    @cached_property
    def member(self) -> Member | None:
        """``None``: this replica has no rank."""
        return self.world.member(self.replica)

    @cached_property
    def has_launcher(self) -> bool:
        """Whether the command starts its processes itself."""
        return starts_own_processes(self.command)

    @property
    def command(self) -> tuple[str, ...] | str | None:
        """The role's command, else the job's; of a replica with a rank behind the launcher that the spec chooses."""
        command = _command(self.spec, self.replica.role)
        return command if self.member is None else with_launcher(command, self.spec.launcher)

    @property
    def args(self) -> tuple[str, ...]:
        own = self.spec.roles[self.replica.role].args
        return self.spec.args if own is None else own

    @property
    def is_uai(self) -> bool:
        return self.spec.contract is Contract.UAI

    @property
    def is_serving(self) -> bool:
        return self.spec.contract is Contract.SERVING

    @property
    def gpu_count(self) -> int:
        """Devices that the replica sees; one if it has a fraction of it."""
        return self.spec.roles[self.replica.role].resources.device_count

    @property
    def gpu_milli(self) -> int:
        """Its fraction of one device, in thousandths; 0: whole devices, or none."""
        return self.spec.roles[self.replica.role].resources.gpu_milli

    @property
    def processes(self) -> int:
        """Processes that the runtime starts for this replica.

        A server (ps, evaluator) listens on one port: it is one process unless the spec says otherwise.
        """
        if self.has_launcher:
            return 1
        if self.member is not None:
            return self.member.processes
        return self.spec.roles[self.replica.role].processes_per_replica or 1


def endpoint(host: str, port: int) -> str:
    """``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def framework_endpoint(replica: ReplicaAddress) -> str:
    return endpoint(replica.host, replica.ports.framework)
