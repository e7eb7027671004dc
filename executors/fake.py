"""An engine in memory and in virtual time, for the control loop's fault tests. It passes the real drivers' suite.

The engine is shared by every :class:`FakeExecutor` of a test, as a cluster is by control planes. Each is the driver of
one control plane, into whose calls the test injects faults. Nothing moves but by :meth:`FakeEngine.advance`. The engine
also keeps the ledger that a fault test asks at the end: which replica was started when, and each pair of replicas that
ran at once and must not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from random import Random  # noqa: TID251 - the generator is an argument, as the ban asks
from typing import Any, Final, TypeVar

from core.domain.errors import AttemptRemoved, ExecutorRefused, ExecutorTryAgain
from core.domain.ids import AttemptId, JobId
from core.domain.jobs.layout import Layout, Ports, ReplicaAddress
from core.domain.sharing.gpus import WHOLE_GPU
from core.domain.sharing.resources import Amounts
from executors.base import ExitCause, NodeInfo, Observation, Phase, ReplicaExit, ReplicaKey, ReplicaOrder
from executors.node_resources import ForeignUsage, subtract_usage

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
_ZERO: Final = timedelta()
_FIRST_PORT: Final = 20_000
_LAST_PORT: Final = 60_000


@dataclass(frozen=True, slots=True)
class Script:
    """Behaviour of a replica after its creation. The default starts at once and succeeds after ten seconds."""

    start_after: timedelta = _ZERO
    run_for: timedelta | None = timedelta(seconds=10)  # None: until it is stopped
    exit_code: int | None = 0
    cause: ExitCause = ExitCause.EXITED
    sentence: str = ""
    log_tail: str = ""
    ends_after_term: timedelta | None = _ZERO  # None: ignores SIGTERM until its grace is over
    refuse: str | None = None  # the engine says no to its creation


ScriptSource = Callable[[ReplicaOrder], Script]


@dataclass(slots=True)
class _Replica:
    order: ReplicaOrder
    script: Script
    created_at: datetime
    stop_requested_at: datetime | None = None
    killed_at: datetime | None = None  # when the grace is over
    exit: ReplicaExit | None = None
    is_lost: bool = False
    joined_at: datetime | None = None  # when one that was created to join got its world

    @property
    def is_joining(self) -> bool:
        return self.order.world == 0

    @property
    def started_at(self) -> datetime:
        return max(self.created_at + self.script.start_after, self.joined_at or self.created_at)

    @property
    def is_live(self) -> bool:
        return self.exit is None and not self.is_lost

    def apply_due_events(self, now: datetime) -> None:
        """Let happen what is due by ``now``."""
        if not self.is_live:
            return
        natural = None if self.script.run_for is None or self.is_joining else self.started_at + self.script.run_for
        stopped = self._stopped_at()
        if natural is not None and natural <= now and (stopped is None or natural <= stopped):
            sentence = self.script.sentence or f"The command ended with exit code {self.script.exit_code}."
            self.exit = ReplicaExit(self.script.cause, self.script.exit_code, sentence, natural, self.script.log_tail)
        elif stopped is not None and stopped <= now:
            code = 137 if stopped == self.killed_at else 143
            self.exit = ReplicaExit(ExitCause.STOPPED, code, "Stopped because the platform asked.", stopped)

    def _stopped_at(self) -> datetime | None:
        if self.stop_requested_at is None or self.killed_at is None:
            return None
        if self.script.ends_after_term is None:
            return self.killed_at
        return min(self.killed_at, self.stop_requested_at + self.script.ends_after_term)


@dataclass(slots=True)
class FakeEngine:
    """Nodes, replicas and virtual time. Safe to share between threads.

    Args:
        node_list: the machines; default one ready node ``node-0`` with 64 CPUs and 256 GiB.
        script_for: what a created replica does; :meth:`script` sets it per role and index instead.
    """

    node_list: Sequence[NodeInfo] = (NodeInfo("node-0", {}, Amounts(64_000, 256 * 2**30)),)
    script_for: ScriptSource | None = None
    now: datetime = EPOCH
    violations: list[str] = field(default_factory=list)
    starts: list[tuple[datetime, ReplicaKey]] = field(default_factory=list)
    next_port: int = _FIRST_PORT
    _replicas: dict[ReplicaKey, _Replica] = field(default_factory=dict)
    _unfinished: dict[ReplicaKey, _Replica] = field(default_factory=dict)  # that may still end
    _keys: dict[AttemptId, list[ReplicaKey]] = field(default_factory=dict)
    _of_job: dict[JobId, list[ReplicaKey]] = field(default_factory=dict)
    _removed: set[AttemptId] = field(default_factory=set)
    _scripts: dict[tuple[str, int | None], list[Script]] = field(default_factory=dict)
    _late: list[tuple[datetime, Callable[[], None]]] = field(default_factory=list)
    _nodes: dict[str, NodeInfo] = field(init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._nodes = {node.name: node for node in self.node_list}

    # What a test does

    def script(self, role: str, *scripts: Script, index: int | None = None) -> None:
        """The next creations of ``role`` (of one ``index``, or of each) follow ``scripts`` in turn; the last stays."""
        with self._lock:
            self._scripts[role, index] = list(scripts)

    def advance(self, by: timedelta) -> None:
        """Let ``by`` pass. Late calls take effect at their own time, in order."""
        with self._lock:
            target = self.now + by
            while due := sorted((at for at, _ in self._late if at <= target)):
                self.now = max(self.now, due[0])
                self._apply_due_events()
                ready = [call for at, call in self._late if at == due[0]]
                self._late = [(at, call) for at, call in self._late if at != due[0]]
                for call in ready:
                    call()
            self.now = target
            self._apply_due_events()

    def lose_node(self, name: str) -> None:
        """The machine is gone, and with it everything on it."""
        with self._lock:
            self._nodes[name] = replace(self._nodes[name], is_ready=False, condition="The node does not answer.")
            for replica in self._replicas.values():
                if replica.order.node == name and replica.is_live:
                    replica.is_lost = True

    def restore_node(self, name: str) -> None:
        """The machine is back, empty."""
        with self._lock:
            self._nodes[name] = replace(self._nodes[name], is_ready=True, condition="")

    def lose(self, key: ReplicaKey) -> None:
        """One replica vanishes without an exit, as when an administrator deletes it by hand."""
        with self._lock:
            self._replicas[key].is_lost = True

    def end(self, key: ReplicaKey, exit_code: int | None, cause: ExitCause = ExitCause.EXITED) -> None:
        """The replica ends now."""
        with self._lock:
            replica = self._replicas[key]
            if replica.is_live:
                replica.exit = ReplicaExit(cause, exit_code, f"The command ended with exit code {exit_code}.", self.now)

    def live(self) -> frozenset[ReplicaKey]:
        """Keys of the replicas that run or are starting."""
        with self._lock:
            self._apply_due_events()
            return frozenset(key for key, replica in self._replicas.items() if replica.is_live)

    def order_of(self, key: ReplicaKey) -> ReplicaOrder:
        """The order that the replica was created with."""
        with self._lock:
            return self._replicas[key].order

    # What a driver asks

    def nodes(self, database_id: str = "") -> Sequence[NodeInfo]:
        with self._lock:
            self._apply_due_events()
            foreign = [
                (
                    r.order.node,
                    ForeignUsage(r.order.request.cpu_milli, r.order.request.memory_bytes, frozenset(r.order.gpus)),
                )
                for r in self._replicas.values()
                if r.is_live and database_id and r.order.database_id not in ("", database_id)
            ]
            return tuple(
                subtract_usage(node, [usage for name, usage in foreign if name == node.name])
                for node in self._nodes.values()
            )

    def assign(self, layout: Layout, taken_ports: frozenset[int]) -> Layout:
        with self._lock:
            return Layout(tuple(self._with_ports(replica, taken_ports) for replica in layout.replicas))

    def create(self, order: ReplicaOrder) -> None:
        with self._lock:
            key = order.key
            if key in self._replicas:
                return
            if key.attempt_id in self._removed:
                raise AttemptRemoved(f"Attempt {key.attempt_id} was removed; start a new attempt.")
            script = self._script_of(order)
            if script.refuse is not None:
                raise ExecutorRefused(script.refuse)
            self._note_conflicts(key)
            self._note_crowding(order)
            node = self._nodes.get(order.node)
            replica = _Replica(order, script, self.now, is_lost=node is None or not node.is_ready)
            self._replicas[key] = self._unfinished[key] = replica
            self._keys.setdefault(key.attempt_id, []).append(key)
            self._of_job.setdefault(key.job_id, []).append(key)
            self.starts.append((self.now, key))
            replica.apply_due_events(self.now)

    def change_world(self, order: ReplicaOrder) -> None:
        with self._lock:
            self._apply_due_events()
            replica = self._replicas.get(order.key)
            if replica is not None and replica.is_live and (order.world or 0) > (replica.order.world or 0):
                if replica.is_joining:
                    replica.joined_at = self.now
                replica.order = order
            self._apply_due_events()

    def stop(self, key: ReplicaKey, grace: timedelta) -> None:
        with self._lock:
            self._apply_due_events()
            replica = self._replicas.get(key)
            if replica is None or not replica.is_live:
                return
            replica.stop_requested_at = replica.stop_requested_at or self.now
            end = self.now + grace
            replica.killed_at = end if replica.killed_at is None else min(end, replica.killed_at)
            self._apply_due_events()

    def observe(self, attempt_id: AttemptId) -> Sequence[Observation]:
        with self._lock:
            newest: dict[tuple[str, int], _Replica] = {}
            for key in self._keys.get(attempt_id, ()):
                replica = self._replicas[key]
                replica.apply_due_events(self.now)
                known = newest.get((key.role, key.index))
                if known is None or known.order.key.generation < key.generation:
                    newest[key.role, key.index] = replica
            return tuple(self._observation(replica) for replica in newest.values())

    def attempts(self) -> Mapping[AttemptId, str]:
        with self._lock:
            return {name: self._replicas[keys[0]].order.database_id for name, keys in self._keys.items()}

    def remove(self, attempt_id: AttemptId) -> None:
        with self._lock:
            self._removed.add(attempt_id)
            for key in self._keys.pop(attempt_id, ()):
                del self._replicas[key]
                self._unfinished.pop(key, None)
                self._of_job[key.job_id].remove(key)

    def later(self, after: timedelta, call: Callable[[], None]) -> None:
        """``call`` takes effect when ``after`` has passed."""
        with self._lock:
            self._late.append((self.now + after, call))

    # Inside

    def _apply_due_events(self) -> None:
        over = []
        for key, replica in self._unfinished.items():
            replica.apply_due_events(self.now)
            if not replica.is_live:
                over.append(key)
        for key in over:
            del self._unfinished[key]

    def _script_of(self, order: ReplicaOrder) -> Script:
        for where in ((order.key.role, order.key.index), (order.key.role, None)):
            scripts = self._scripts.get(where)
            if scripts:
                return scripts.pop(0) if len(scripts) > 1 else scripts[0]
        return self.script_for(order) if self.script_for is not None else Script()

    def _note_crowding(self, order: ReplicaOrder) -> None:
        """A device is one replica's, or belongs in parts, together no more than all of it, to several."""
        for gpu in order.gpus:
            taken = sum(
                replica.order.request.gpu_milli or WHOLE_GPU
                for replica in self._unfinished_replicas()
                if replica.is_live and replica.order.node == order.node and gpu in replica.order.gpus
            )
            if taken + (order.request.gpu_milli or WHOLE_GPU) > WHOLE_GPU:
                self.violations.append(
                    f"{self.now}: {order.key} was given GPU {gpu} of {order.node}, which others have."
                )

    def _note_conflicts(self, key: ReplicaKey) -> None:
        for other in self._of_job.get(key.job_id, ()):
            replica = self._replicas[other]
            replica.apply_due_events(self.now)
            if not replica.is_live:
                continue
            if other.attempt_id != key.attempt_id:
                self.violations.append(f"{self.now}: {key} was started while {other} of an older attempt ran.")
            elif (other.role, other.index) == (key.role, key.index):
                self.violations.append(f"{self.now}: {key} was started while its generation {other.generation} ran.")

    def _unfinished_replicas(self) -> Sequence[_Replica]:
        self._apply_due_events()
        return tuple(self._unfinished.values())

    def _with_ports(self, replica: ReplicaAddress, taken: frozenset[int]) -> ReplicaAddress:
        ports = [self._fresh_port(taken) for _ in range(4)]
        return replace(replica, host=replica.node or "127.0.0.1", ports=Ports(*ports))

    def _fresh_port(self, taken: frozenset[int]) -> int:
        while True:
            port = self.next_port
            self.next_port = port + 1 if port < _LAST_PORT else _FIRST_PORT
            if port not in taken:
                return port

    def _observation(self, replica: _Replica) -> Observation:
        started = replica.started_at if replica.started_at <= self.now and not replica.is_joining else None
        if replica.exit is not None:
            done = replica.exit.cause in (ExitCause.EXITED, ExitCause.HANGING_EXIT) and replica.exit.exit_code == 0
            phase = Phase.SUCCEEDED if done else Phase.FAILED
        elif replica.is_lost:
            phase = Phase.LOST
        else:
            phase = Phase.RUNNING if started else Phase.PENDING
        detail = "The command has not started yet." if phase is Phase.PENDING else ""
        return Observation(replica.order.key, phase, started, replica.exit, detail, self._facts(replica))

    def _facts(self, replica: _Replica) -> Mapping[str, Any]:
        facts: dict[str, Any] = {"engine": "fake", "node": replica.order.node}
        if replica.order.world is not None:
            facts |= {"world": replica.order.world, "is_ready": replica.is_joining and replica.started_at <= self.now}
        return facts


class InjectedFault(StrEnum):
    """One call's fate. ``LATE`` and ``TWICE`` are for calls that change something; others read them as ``NONE``."""

    NONE = "none"
    BEFORE = "before"  # ExecutorTryAgain, and nothing was done
    AFTER = "after"  # ExecutorTryAgain, yet it was done
    TWICE = "twice"  # done now and once more later, when the caller has long gone on
    LATE = "late"  # ExecutorTryAgain, and it is done later
    KILLED_BEFORE = "killed_before"  # the calling process dies before the effect …
    KILLED_AFTER = "killed_after"  # … or right after it


class ProcessKilled(BaseException):
    """The control plane's process died here. Not an ``Exception``: no edge may swallow it, as none survives a kill."""


# (name of the call, what it is about as text) -> fate
FaultSource = Callable[[str, str], InjectedFault]


def no_faults(call: str, subject: str) -> InjectedFault:  # noqa: ARG001 - the protocol's shape
    return InjectedFault.NONE


class SeededFaults:
    """Draws fates by weight; the same generator state gives the same fates. ``is_on = False`` ends all trouble."""

    def __init__(self, random: Random, weights: Mapping[InjectedFault, float]) -> None:
        self._random = random
        self._fates = list(weights)
        self._weights = [weights[fate] for fate in self._fates]
        self.is_on = True

    def __call__(self, call: str, subject: str) -> InjectedFault:  # noqa: ARG002 - the protocol's shape
        if not self.is_on:
            return InjectedFault.NONE
        remainder = max(0.0, 1.0 - sum(self._weights))
        return self._random.choices([*self._fates, InjectedFault.NONE], [*self._weights, remainder])[0]


T = TypeVar("T")
_AWAY: Final = "The engine did not answer; try again."


class FakeExecutor:
    """Satisfies :class:`executors.base.Executor` over ``engine``.

    Args:
        faults: asked once per call.
        late_by: virtual time until a late call, or the second half of a doubled one, takes effect.
    """

    name = "fake"
    shares_hosts = True

    def __init__(
        self, engine: FakeEngine, faults: FaultSource = no_faults, *, late_by: timedelta = timedelta(seconds=5)
    ) -> None:
        self.engine = engine
        self.faults = faults
        self.late_by = late_by

    def nodes(self, *, database_id: str = "") -> Sequence[NodeInfo]:
        return self._read("nodes", "", lambda: self.engine.nodes(database_id))

    def assign_addresses(
        self,
        layout: Layout,
        taken_ports: frozenset[int],
        attempt_id: AttemptId,  # noqa: ARG002
        *,
        world: int = 1,  # noqa: ARG002 - ports come again only when all others were given out
    ) -> Layout:
        return self._read("assign_addresses", "", lambda: self.engine.assign(layout, taken_ports))

    def create(self, order: ReplicaOrder) -> None:
        self._write("create", str(order.key), lambda: self.engine.create(order))

    def change_world(self, order: ReplicaOrder) -> None:
        self._write("change_world", str(order.key), lambda: self.engine.change_world(order))

    def kill(self, key: ReplicaKey) -> None:
        self._write("give_up", str(key), lambda: self.engine.stop(key, timedelta()))

    def stop(self, key: ReplicaKey, *, grace: timedelta) -> None:
        self._write("stop", str(key), lambda: self.engine.stop(key, grace))

    def observe(self, attempt_id: AttemptId, *, fresh: bool = False) -> Sequence[Observation]:  # noqa: ARG002 (always)
        return self._read("observe", attempt_id, lambda: self.engine.observe(attempt_id))

    def attempts(self) -> Mapping[AttemptId, str]:
        return self._read("attempts", "", self.engine.attempts)

    def remove(self, attempt_id: AttemptId) -> None:
        self._write("remove", attempt_id, lambda: self.engine.remove(attempt_id))

    def _read(self, call: str, subject: str, effect: Callable[[], T]) -> T:
        match self.faults(call, subject):
            case InjectedFault.BEFORE | InjectedFault.AFTER:
                raise ExecutorTryAgain(_AWAY)
            case InjectedFault.KILLED_BEFORE | InjectedFault.KILLED_AFTER:
                raise ProcessKilled(call)
            case InjectedFault.NONE | InjectedFault.TWICE | InjectedFault.LATE:
                return effect()

    def _write(self, call: str, subject: str, effect: Callable[[], None]) -> None:
        match self.faults(call, subject):
            case InjectedFault.NONE:
                effect()
            case InjectedFault.BEFORE:
                raise ExecutorTryAgain(_AWAY)
            case InjectedFault.AFTER:
                effect()
                raise ExecutorTryAgain(_AWAY)
            case InjectedFault.TWICE:
                effect()
                self.engine.later(self.late_by, _ignoring_errors(effect))
            case InjectedFault.LATE:
                self.engine.later(self.late_by, _ignoring_errors(effect))
                raise ExecutorTryAgain(_AWAY)
            case InjectedFault.KILLED_BEFORE:
                raise ProcessKilled(call)
            case InjectedFault.KILLED_AFTER:
                effect()
                raise ProcessKilled(call)


def _ignoring_errors(effect: Callable[[], None]) -> Callable[[], None]:
    """``effect`` without its errors: the caller of a late effect is gone."""

    def call() -> None:
        try:
            effect()
        except Exception:  # noqa: BLE001, S110 - the caller is long gone; an engine answers into the void
            pass

    return call
