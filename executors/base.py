"""The executors' port: what every driver can do, and the values that cross it.

A driver gets what to run (:class:`ReplicaOrder`) and returns what it sees (:class:`Observation`). It keeps no
memory that matters: everything is found again in the engine by labels or by files after any restart. Calls block,
may be repeated and may be made by two processes at once; they raise ``ExecutorTryAgain`` (engine away or busy),
``ExecutorRefused`` (the user's to mend) or anything else (a bug).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol, runtime_checkable

from core.domain.errors import ExecutorError
from core.domain.ids import AttemptId, JobId
from core.domain.jobs.exits import ExitCause as ExitCause  # noqa: PLC0414 (part of this port, defined by meaning)
from core.domain.jobs.layout import Layout
from core.domain.sharing.resources import Amounts, ResourceRequest

# Where containers have the folder of their project's layers (trainmaster_runtime.environment), a mount of the order.
ENVIRONMENTS: Final = "/trainmaster/environments"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device. ``id`` is what an order names when the device is assigned (an index or a UUID).

    ``formerly``: ids from before an upgrade; a running replica may still hold the device by one of these.
    """

    id: str
    model: str
    memory_bytes: int
    formerly: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A machine as the engine sees it. ``allocatable``: what the platform may give out on it."""

    name: str
    labels: Mapping[str, str]
    allocatable: Amounts
    gpus: tuple[Gpu, ...] = ()
    is_ready: bool = True
    condition: str = ""  # a sentence: why it is not ready, or why a ready node takes no new work
    is_draining: bool = False  # in the engine: what runs there is to leave soon


@dataclass(frozen=True, slots=True)
class ReplicaKey:
    """Identity of one start of a replica. ``generation`` counts its starts inside one attempt, from 1."""

    job_id: JobId
    attempt_id: AttemptId
    role: str
    index: int
    generation: int = 1


@dataclass(frozen=True, slots=True)
class VolumeSource:
    """A registered volume and the folder in it. ``config`` is what its kind needs: see ``docs/volumes.md``."""

    name: str
    kind: str  # local | nfs | pvc | csi
    config: Mapping[str, Any]
    path: str = ""  # inside the volume, clean and relative; empty: all of it


@dataclass(frozen=True, slots=True)
class MountOrder:
    """``source``: the folder as a path on the node, for drivers that mount paths; it means nothing, and may be
    empty, where ``volume`` is of a kind that only the engine can mount (pvc, csi). ``volume``: the same for drivers
    that mount volumes. ``inode``: the folder's inode number when the platform checked it, where that identifies it; a
    driver that mounts paths has it compared with what was mounted. ``owner``: (uid, gid) of the folder's content, where
    projects have user ids of their own and the folder is the platform's: an earlier version left it to root.
    """

    source: str
    target: str
    read_only: bool
    volume: VolumeSource | None = None
    inode: int | None = None
    owner: tuple[int, int] | None = None

    @property
    def kind(self) -> str:
        """Of the volume."""
        return "local" if self.volume is None else self.volume.kind


@dataclass(frozen=True, slots=True)
class ReplicaOrder:
    """Everything needed to start one replica; the same order always starts the same thing.

    ``command``: a list to execute, or a text for ``/bin/sh -c``, or ``None`` for the image's own.
    ``env`` holds every contract already; ``process_env[i]`` is laid over it for local process ``i``.
    ``request`` is what the planner reserved, ``cpu_limit_milli``/``memory_limit_bytes`` are ``None`` where the user
    stated none.
    """

    key: ReplicaKey
    job_name: str
    attempt_number: int
    node: str
    command: tuple[str, ...] | str | None
    args: tuple[str, ...]
    env: Mapping[str, str]
    process_env: tuple[Mapping[str, str], ...]
    request: ResourceRequest
    image: str | None = None
    project: str = ""  # the project's name
    # The project's user id, for drivers that start plain processes as root; None: they run as the platform's user.
    uid: int | None = None
    groups: tuple[int, ...] = ()  # of folders that the project was granted
    database_id: str = ""  # of the database that knows the attempt; drivers mark what they make with it
    code_digest: str | None = None
    # The Python of the command, as the spec's `environment` writes it; empty: the one on the path.
    environment: Mapping[str, Any] = field(default_factory=dict)
    code_path: str | None = None  # the archive (.tar.gz) as a file that the driver can read
    mounts: tuple[MountOrder, ...] = ()  # /data/data and /data/output among them
    files: Mapping[str, str] = field(default_factory=dict)  # path -> content, written before the start (MPI's hostfile)
    gpus: tuple[str, ...] = ()
    cpu_limit_milli: int | None = None
    memory_limit_bytes: int | None = None
    shm_bytes: int | None = None
    pids_limit: int = 32_768
    stop_grace: timedelta = timedelta(seconds=30)
    exit_grace: timedelta = timedelta(seconds=30)
    peers_grace: timedelta = timedelta(minutes=5)
    peer_hosts: tuple[str, ...] = ()  # names that must resolve before the start
    deadline_s: float | None = None  # max_run_time, counted from the start of the user's process
    api_url: str | None = None
    may_start_warm: bool = True  # from a preloaded process, by drivers that have such
    token: str | None = None  # good for this attempt alone; never logged, never in the environment
    # Elastic gangs: number of the layout that ``env`` was made from, 0 for a joining replica; None: not elastic.
    world: int | None = None
    # A joining replica: whether its command starts at once and waits for its world itself, or starts with the world.
    joins_warm: bool = False
    # Names in ``env`` of variables from the job's spec, secrets included: a world update never changes them.
    job_variables: frozenset[str] = frozenset()
    secret_names: frozenset[str] = frozenset()  # of those, the secrets: the runtime masks their values in the log


class Phase(StrEnum):
    """A driver's native state, mapped to ours."""

    PENDING = "pending"  # created, user's code not yet running
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"  # it is gone without an exit: node lost, deleted by hand, machine rebooted


@dataclass(frozen=True, slots=True)
class ReplicaExit:
    """How a replica ended. ``sentence`` is for the user; ``exit_code`` 128+n for signal n, ``None`` if unknown."""

    cause: ExitCause
    exit_code: int | None
    sentence: str
    at: datetime
    log_tail: str = ""  # the last lines (at most 4 KiB) of the replica's log, for the classification of the exit


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of one replica as the engine shows it now."""

    key: ReplicaKey
    phase: Phase
    started_at: datetime | None = None  # of the user's code
    exit: ReplicaExit | None = None  # set for SUCCEEDED and FAILED
    detail: str = ""  # why it is still pending, in words
    facts: Mapping[str, Any] = field(default_factory=dict)  # for people: pid, isolation, …
    # A sentence: it still runs, and the engine ends it soon, without a request of the platform.
    eviction: str = ""


def newest_generations(observations: Iterable[Observation | None]) -> tuple[Observation, ...]:
    """The newest generation of each replica; ``None`` entries are skipped."""
    newest: dict[tuple[str, int], Observation] = {}
    for observation in observations:
        if observation is None:
            continue
        replica = (observation.key.role, observation.key.index)
        known = newest.get(replica)
        if known is None or known.key.generation < observation.key.generation:
            newest[replica] = observation
    return tuple(newest.values())


class Executor(Protocol):
    """Starts, observes and stops replicas on one kind of engine.

    ``shares_hosts``: replicas of different attempts listen on one address, so a port may be assigned only once. Where
    it is false, hosts are names in a network of the attempt's own, or of the attempt alone.
    """

    name: str
    shares_hosts: bool

    def nodes(self, *, database_id: str = "") -> Sequence[NodeInfo]:
        """All nodes that jobs could be placed on, ready or not.

        ``database_id``: the database that records the caller's placements. Resources that another database's orders use
        on a node are subtracted from its ``allocatable``, since the caller does not count them. Empty: subtract
        nothing.
        """
        ...

    def assign_addresses(
        self, layout: Layout, taken_ports: frozenset[int], attempt_id: AttemptId, *, world: int = 1
    ) -> Layout:
        """``layout`` with hosts and ports filled in; called once per world of an attempt, before anything is created.

        ``taken_ports``: ports of all live attempts. ``attempt_id``: the layout's attempt, for hosts that are named
        after it. ``world``: its number; worlds that follow each other have no port in common. Raises
        ``ExecutorTryAgain`` when no port is free.
        """
        ...

    def create(self, order: ReplicaOrder) -> None:
        """Start the replica; returns when the engine has taken it. Creating it again is harmless.

        A late call, after ``remove`` of the attempt, starts nothing: it raises ``ExecutorRefused``.
        """
        ...

    def stop(self, key: ReplicaKey, *, grace: timedelta) -> None:
        """Ask it to end: SIGTERM now, SIGKILL to the whole tree after ``grace``. Returns at once; repeating is harmless
        (a shorter grace shortens it). No error when it is gone already.
        """
        ...

    def observe(self, attempt_id: AttemptId, *, fresh: bool = False) -> Sequence[Observation]:
        """Every replica of the attempt that the engine knows of, ended ones included, newest generation of each.

        A driver may answer from a cache that lags a little, so a replica that another process has just created may
        be missing. ``fresh``: nothing that was created before the call may be; asked before absence counts for
        anything.
        """
        ...

    def attempts(self) -> Mapping[AttemptId, str]:
        """All attempts with any object on the engine, each with the database of its orders: for garbage collection
        of orphans. Empty database: the engine does not record it, or belongs to this platform alone.
        """
        ...

    def remove(self, attempt_id: AttemptId) -> None:
        """Kill what is left of the attempt at once and forget it. Output and logs stay. Repeating is harmless.

        When it returns nothing of the attempt runs, and nothing of it can start any more (see ``create``): only
        then does the control loop let the next attempt begin.
        """
        ...


@runtime_checkable
class ReportsChanges(Protocol):
    """A capability of drivers whose engine reports changes, so that callers need not poll."""

    def wait_for_change(self, timeout_s: float) -> frozenset[AttemptId]:
        """Attempts that ``observe`` may show differently since the last call; empty when none came in time.

        Only a hint: it may come too often, and be lost. Called by one thread. Raises nothing that matters.
        """
        ...


@runtime_checkable
class ChangesWorlds(Protocol):
    """A capability of drivers that reach a running replica: only there a gang can be elastic.

    Their observations have ``facts["world"]``, the number of the newest world that the replica knows (or, where the
    engine delivers it, the one being delivered), and ``facts["is_ready"]`` when a joining replica waits for
    nothing but its first world.
    """

    def change_world(self, order: ReplicaOrder) -> None:
        """Send ``order`` to the running replica as its new world ``order.world``.

        Only command, arguments, environment and files of ``order`` are used, without the variables in
        ``job_variables``. Returns at once; repeating is harmless, and a world older than the replica's is ignored. No
        error when it is gone already.

        Raises:
            ExecutorTryAgain: the replica could not be reached now.
        """
        ...

    def kill(self, key: ReplicaKey) -> None:
        """Kill one replica at once: its gang goes on without it, and its name may be needed again.

        On a machine that does not answer the engine forgets the replica, and ends it when the machine is back. An ended
        replica stays observable. Returns at once; repeating is harmless. No error when it is gone.
        """
        ...


@runtime_checkable
class CreatesGangs(Protocol):
    """A capability of drivers that need fewer requests for several replicas at once."""

    def create_all(self, orders: Sequence[ReplicaOrder]) -> Sequence[ExecutorError | None]:
        """``create`` each order, all of one attempt; returns each order's error, or ``None``, in the same sequence."""
        ...


@runtime_checkable
class ReportsUnkilledReplicas(Protocol):
    """A capability of drivers that may give up on a replica which the engine cannot end."""

    def unkilled_replicas(self, attempt_id: AttemptId) -> Sequence[str]:
        """After ``remove``: a sentence on each replica that could not be killed and may still hold its resources.

        Unchanged until :meth:`forget_unkilled_replicas`; lost when the process ends.
        """
        ...

    def forget_unkilled_replicas(self, attempt_id: AttemptId) -> None:
        """The caller has recorded them. No error when there are none."""
        ...
