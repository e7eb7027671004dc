"""Starting jobs on the nodes that the plan named; each line of the plan is checked again against the database."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from sqlalchemy import ColumnElement, Table, insert, null, select, tuple_, update
from sqlalchemy.orm import Session
from trainmaster.version import __version__

from core.db.engine import UntypedRow
from core.db.repositories.events import append_events, event_row
from core.db.repositories.nodes import is_holding, usage
from core.db.tables import Attempt, Job, Node, Replica
from core.domain.errors import StaleWrite
from core.domain.ids import AttemptId, JobId
from core.domain.jobs.lifecycle import JobEvent, ReplicaEvent, advance
from core.domain.jobs.states import AttemptState, DesiredState, JobState, ReplicaState
from core.domain.sharing.gpus import WHOLE_GPU, device_for_part, in_order_of_size
from core.domain.sharing.resources import Amounts, Gang, ResourceRequest
from core.ids import new_id
from scheduler.control.journal import SCHEDULER, Journal
from scheduler.control.planning.node_cache import node_view
from scheduler.planning.model import Grow, Placement, Start

_MOVE: Final = advance(JobState.QUEUED, JobEvent.PLACE)
_INSERT_ATTEMPT: Final = insert(cast("Table", Attempt.__table__))
_INSERT_REPLICA: Final = insert(cast("Table", Replica.__table__))


@dataclass(slots=True)
class _NodeCapacity:
    """Free resources of one node while gangs are placed. ``why_not``: why it accepts none."""

    cpu_milli: int
    memory_bytes: int
    gpus: dict[str, list[str]]  # model -> ids of free devices
    shared: dict[str, dict[str, int]]  # model -> shared device -> thousandths left of it
    why_not: str

    def copy(self) -> _NodeCapacity:
        shared = {model: dict(left) for model, left in self.shared.items()}
        return _NodeCapacity(self.cpu_milli, self.memory_bytes, dict(self.gpus), shared, self.why_not)

    def take(self, request: ResourceRequest, model: str | None) -> list[str]:
        if self.why_not:
            raise StaleWrite(self.why_not)
        self.cpu_milli -= request.cpu_milli
        self.memory_bytes -= request.memory_bytes
        if self.cpu_milli < 0 or self.memory_bytes < 0:
            raise StaleWrite("a node has less room than the plan saw")
        if request.gpu_milli:
            return [self._part(request.gpu_milli, model or "")]
        if not request.gpu_count:
            return []
        free = self.gpus.get(model or "", [])
        if len(free) < request.gpu_count:
            raise StaleWrite("a node has fewer free GPUs than the plan saw")
        self.gpus[model or ""] = free[request.gpu_count :]
        return free[: request.gpu_count]

    def _part(self, gpu_milli: int, model: str) -> str:
        """The device that the planner would choose as well."""
        left = self.shared.setdefault(model, {})
        devices = sorted(left)
        at = device_for_part([left[device] for device in devices], gpu_milli)
        if at is not None:
            left[devices[at]] -= gpu_milli
            return devices[at]
        free = self.gpus.get(model, [])
        if not free:
            raise StaleWrite("a node has no GPU with as large a part free as the plan saw")
        self.gpus[model] = free[1:]
        left[free[0]] = WHOLE_GPU - gpu_milli
        return free[0]


@dataclass(frozen=True, slots=True)
class StartOrder:
    """One start of the plan. ``generation``: the job's, as the plan saw it."""

    start: Start
    generation: int
    gang: Gang


@dataclass(slots=True)
class _PlacedGang:
    """A gang that has got its resources: the rows of its replicas."""

    order: StartOrder
    attempt_id: AttemptId
    replicas: list[dict[str, object]]


def place_all(
    session: Session,
    orders: Sequence[StartOrder],
    *,
    executor: str,
    now: datetime,
    make_id: Callable[[str], str] = new_id,
) -> dict[JobId, AttemptId | StaleWrite]:
    """Write attempts and replicas, and move the jobs to starting. Each gang is placed as a whole or not at all, and
    independently of the others. The caller holds the tick's lease.

    Returns:
        By job its new attempt, or why nothing was written: the job or a node has changed since the plan saw it.
    """
    outcomes: dict[JobId, AttemptId | StaleWrite] = {}
    capacities = _node_capacities(session, {placement.node for order in orders for placement in order.start.placements})
    gangs: dict[str, _PlacedGang] = {}
    for order in orders:
        try:
            gangs[order.start.job_id] = _place_gang(order, capacities, make_id)
        except StaleWrite as stale:
            outcomes[order.start.job_id] = stale
    moved = _move_jobs(session, list(gangs.values()), now)
    attempts, replicas, journal = [], [], []
    for job_id, placed in gangs.items():
        if job_id not in moved:
            outcomes[JobId(job_id)] = StaleWrite("the job has moved since the plan was made")
            continue
        number, project_id = moved[job_id]
        outcomes[JobId(job_id)] = placed.attempt_id
        attempts.append(_attempt(placed, number, executor, now))
        replicas += placed.replicas
        journal.append(_line(placed, number, project_id, now))
    if attempts:
        connection = session.connection()
        connection.execute(_INSERT_ATTEMPT, attempts)
        connection.execute(_INSERT_REPLICA, replicas)
        append_events(session, journal)
    return outcomes


def _place_gang(order: StartOrder, capacities: dict[str, _NodeCapacity], make_id: Callable[[str], str]) -> _PlacedGang:
    """Take resources for the whole gang. Raises ``StaleWrite``, and takes none, when a node has too little."""
    names = {placement.node for placement in order.start.placements}
    if not names <= capacities.keys():
        raise StaleWrite("a node of the plan is gone")
    trial_capacities: dict[str, _NodeCapacity] = {name: capacities[name].copy() for name in names}
    attempt_id = AttemptId(make_id("att"))
    requests = {role.role: role.request for role in order.gang.roles}
    placements = order.start.placements
    replicas: dict[int, dict[str, object]] = {
        rank: {
            "id": make_id("rep"),
            **_replica(
                order.start.job_id,
                attempt_id,
                rank,
                placements[rank],
                requests[placements[rank].role],
                trial_capacities,
            ),
        }
        for rank in in_order_of_size([requests[placement.role].gpu_milli for placement in placements])
    }
    capacities.update(trial_capacities)
    return _PlacedGang(order, attempt_id, [replicas[rank] for rank in range(len(placements))])


def _move_jobs(session: Session, gangs: Sequence[_PlacedGang], now: datetime) -> dict[str, tuple[int, str]]:
    """The jobs that have not changed since the plan and start now: id -> (number of attempts, project)."""
    if not gangs:
        return {}
    generations = [(placed.order.start.job_id, placed.order.generation) for placed in gangs]
    rows = session.execute(
        update(Job)
        .where(
            Job.state == JobState.QUEUED.value,
            Job.desired_state == DesiredState.RUN.value,
            tuple_(Job.id, Job.generation).in_(generations),
        )
        .values(
            state=_MOVE.state.value,
            generation=Job.generation + 1,
            attempt_count=Job.attempt_count + 1,
            wait_reason=null(),
            preemption=null(),
            preempting_since=None,
            not_before=None,
            exit=null(),
            updated_at=now,
        )
        .returning(Job.id, Job.attempt_count, Job.project_id)
        .execution_options(synchronize_session=False)
    )
    return {row.id: (row.attempt_count, row.project_id) for row in rows}


def _attempt(placed: _PlacedGang, number: int, executor: str, now: datetime) -> dict[str, object]:
    return {
        "id": placed.attempt_id,
        "job_id": placed.order.start.job_id,
        "number": number,
        "state": AttemptState.PLACED.value,
        "generation": 1,
        "executor": executor,
        "counts_as_restart": False,
        "platform_version": __version__,
        "created_at": now,
    }


def _line(placed: _PlacedGang, number: int, project_id: str, now: datetime) -> dict[str, object]:
    placements = placed.order.start.placements
    return event_row(
        at=now,
        kind=_MOVE.kind,
        actor=SCHEDULER,
        project_id=project_id,
        job_id=placed.order.start.job_id,
        attempt_id=placed.attempt_id,
        reason=_where(placements),
        data={"attempt": number, "nodes": dict(Counter(p.node for p in placements))},
    )


def grow(
    session: Session, grow_: Grow, *, gang: Gang, now: datetime, make_id: Callable[[str], str] = new_id
) -> AttemptId:
    """Write the replicas that join the job's live attempt; its reconcile creates them. The caller holds the tick's
    lease.

    Raises:
        StaleWrite: the attempt, a replica or a node has changed since the plan saw it; nothing is written.
    """
    attempt = change_attempt(
        session,
        Attempt.job_id == grow_.job_id,
        Attempt.state.in_([AttemptState.STARTING.value, AttemptState.RUNNING.value]),
    )
    project_id = session.execute(
        select(Job.project_id).where(Job.id == grow_.job_id, Job.desired_state == DesiredState.RUN.value)
    ).scalar_one_or_none()
    if attempt is None or project_id is None:
        raise StaleWrite("the attempt has moved since the plan was made")
    attempt_id = AttemptId(attempt.id)
    capacities = _node_capacities(session, {placement.node for placement in grow_.placements})
    if any(placement.node not in capacities for placement in grow_.placements):
        raise StaleWrite("a node of the plan is gone")
    requests = {role.role: role.request for role in gang.roles}
    known = _replicas_of(session, attempt_id)
    # It ranks last until the next world.
    last = max((row.rank for row in known.values()), default=-1)
    for number, placement in enumerate(grow_.placements, start=1):
        request = requests[placement.role]
        values = _replica(grow_.job_id, attempt_id, last + number, placement, request, capacities)
        values["placed_at"] = now
        before = known.get((placement.role, placement.index))
        if before is None:
            session.execute(insert(Replica).values(id=make_id("rep"), **values))
            continue
        if before.memory_bytes > 0:
            raise StaleWrite(f"{placement.role}-{placement.index} holds its place still")
        move = advance(ReplicaState(before.state), ReplicaEvent.RESTART)
        values |= {"state": move.state.value, "exit": None, "started_at": None, "ended_at": None, "heartbeat_at": None}
        values["removal"] = null()
        values["generation"] = Replica.generation + 1
        session.execute(
            update(Replica).where(Replica.id == before.id).values(**values).execution_options(synchronize_session=False)
        )
    names = [f"{placement.role}-{placement.index}" for placement in grow_.placements]
    where = ", ".join(sorted({placement.node for placement in grow_.placements})[:8])
    Journal(session, project_id, grow_.job_id, attempt_id).add(
        "attempt.growing",
        f"{', '.join(names[:8])} {'joins' if len(names) == 1 else 'join'} on {where}, where resources are free and no "
        "job waits for them; the others go on meanwhile.",
        at=now,
        data={"attempt": attempt.number, "replicas": names[:100], "count": len(names)},
    )
    return attempt_id


def change_attempt(session: Session, *where: ColumnElement[bool], **values: object) -> UntypedRow | None:
    """Change the attempt, unless it is ending; its ``id`` and ``number``, or ``None`` where no such attempt matches."""
    return session.execute(
        update(Attempt)
        .where(*where, Attempt.stop.is_(None), Attempt.decided_at.is_(None))
        .values(generation=Attempt.generation + 1, **values)
        .returning(Attempt.id, Attempt.number)
        .execution_options(synchronize_session=False)
    ).one_or_none()


def _replicas_of(session: Session, attempt_id: AttemptId) -> dict[tuple[str, int], Any]:
    """The rows of the attempt's replicas, by (role, index)."""
    columns = (
        Replica.id,
        Replica.role,
        Replica.index.label("number"),
        Replica.state,
        Replica.memory_bytes,
        Replica.rank,
    )
    rows = session.execute(select(*columns).where(Replica.attempt_id == attempt_id))
    return {(row.role, row.number): row for row in rows}


def _replica(
    job_id: JobId,
    attempt_id: AttemptId,
    rank: int,
    placement: Placement,
    request: ResourceRequest,
    capacities: Mapping[str, _NodeCapacity],
) -> dict[str, object]:
    return {
        "attempt_id": attempt_id,
        "job_id": job_id,
        "role": placement.role,
        "replica_index": placement.index,
        "rank": rank,
        "generation": 1,
        "state": ReplicaState.PENDING.value,
        "node": placement.node,
        "gpus": capacities[placement.node].take(request, placement.gpu_model),
        "gpu_model": placement.gpu_model,
        "gpu_milli": request.gpu_milli,
        "cpu_milli": request.cpu_milli,
        "memory_bytes": request.memory_bytes,
        "detail": "",
        "facts": {},
        "report_seq": 0,
        "progress": {},
    }


def _node_capacities(session: Session, names: set[str]) -> dict[str, _NodeCapacity]:
    """The free resources of those of these nodes that exist."""
    holders = session.execute(
        select(
            Replica.node, Replica.cpu_milli, Replica.memory_bytes, Replica.gpus, Replica.gpu_model, Replica.gpu_milli
        ).where(is_holding(), Replica.node.in_(names))
    ).all()  # fmt: skip
    used = usage(holders)
    used_devices: defaultdict[str, set[str]] = defaultdict(set)
    # (node, device) -> thousandths held; whole devices count as all
    parts: defaultdict[tuple[str, str], int] = defaultdict(int)
    for row in holders:
        used_devices[row.node].update(row.gpus)
        for gpu in row.gpus:
            parts[row.node, gpu] += row.gpu_milli or WHOLE_GPU
    capacities: dict[str, _NodeCapacity] = {}
    for node in session.scalars(select(Node).where(Node.name.in_(names))):
        view = node_view(node, used.get(node.name, Amounts()))
        gpus: defaultdict[str, list[str]] = defaultdict(list)
        shared: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for gpu in node.gpus:
            device_names = [gpu["id"], *gpu.get("formerly", ())]
            if used_devices[node.name].isdisjoint(device_names):
                gpus[gpu["model"]].append(gpu["id"])
            elif (left := WHOLE_GPU - sum(parts[node.name, name] for name in device_names)) > 0:
                shared[gpu["model"]][gpu["id"]] = left
        # Where other programs use the engine as well, fewer may be free than there are ids: the engine picks them.
        free = {model: ids[: view.free.gpus.get(model, 0)] for model, ids in gpus.items()}
        why_not = f"node {node.name} {view.why_not}" if view.why_not else ""
        capacities[node.name] = _NodeCapacity(view.free.cpu_milli, view.free.memory_bytes, free, dict(shared), why_not)
    return capacities


def _where(placements: Sequence[Placement]) -> str:
    by_node = Counter(placement.node for placement in placements)
    if len(by_node) == 1:
        node = next(iter(by_node))
        return (
            f"Placed on {node}."
            if len(placements) == 1
            else f"Placed on {node}: all {len(placements)} replicas fit there."
        )
    listed = ", ".join(f"{node} ({count})" for node, count in sorted(by_node.items())[:8])
    more = f" and {len(by_node) - 8} more" if len(by_node) > 8 else ""
    return (
        f"Placed on {len(by_node)} nodes: {listed}{more}; no single node has room for all {len(placements)} replicas."
    )
