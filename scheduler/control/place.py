"""Starting one job on the nodes that the plan named: every line is checked again against the truth."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import insert, null, select, update
from sqlalchemy.orm import Session

from core.db.repositories.nodes import is_holding, usage
from core.db.tables import Attempt, Job, Node, Replica
from core.domain.errors import StaleWrite
from core.domain.ids import AttemptId, JobId
from core.domain.lifecycle import JobEvent, advance
from core.domain.resources import Amounts, Gang, Request
from core.domain.states import AttemptState, JobState, ReplicaState, Wanted
from core.ids import new_id
from scheduler.control.journal import Journal
from scheduler.control.snapshot import node_view
from scheduler.planning.model import Placement, Start


@dataclass(slots=True)
class _Room:
    """What is left on one node while the gang is placed."""

    cpu_milli: int
    memory_bytes: int
    gpus: dict[str, list[str]]  # model -> ids of free devices

    def take(self, request: Request, model: str | None) -> list[str]:
        self.cpu_milli -= request.cpu_milli
        self.memory_bytes -= request.memory_bytes
        if self.cpu_milli < 0 or self.memory_bytes < 0:
            raise StaleWrite("a node has less room than the plan saw")
        if not request.gpu_count:
            return []
        free = self.gpus.get(model or "", [])
        if len(free) < request.gpu_count:
            raise StaleWrite("a node has fewer free GPUs than the plan saw")
        self.gpus[model or ""] = free[request.gpu_count :]
        return free[: request.gpu_count]


def place(session: Session, start: Start, *, generation: int, gang: Gang, executor: str, now: datetime) -> AttemptId:
    """Write the attempt and its replicas, and move the job to starting. The caller holds the tick's lease.

    Raises:
        StaleWrite: the job or a node is not any more what the plan saw; nothing is written.
    """
    move = advance(JobState.QUEUED, JobEvent.PLACE)
    moved = session.execute(
        update(Job)
        .where(
            Job.id == start.job_id,
            Job.state == JobState.QUEUED.value,
            Job.wanted == Wanted.RUN.value,
            Job.generation == generation,
        )
        .values(
            state=move.state.value,
            generation=Job.generation + 1,
            attempt_count=Job.attempt_count + 1,
            wait_reason=null(),
            not_before=None,
            exit=null(),
            updated_at=now,
        )
        .returning(Job.attempt_count, Job.project_id)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    if moved is None:
        raise StaleWrite("the job has moved since the plan was made")
    rooms = _rooms(session, {placement.node for placement in start.placements})
    requests = {role.role: role.request for role in gang.roles}
    attempt_id = AttemptId(new_id("att"))
    session.execute(
        insert(Attempt).values(
            id=attempt_id,
            job_id=start.job_id,
            number=moved.attempt_count,
            state=AttemptState.PLACED.value,
            generation=1,
            executor=executor,
            is_counted=False,
            created_at=now,
        )
    )
    session.execute(
        insert(Replica),
        [
            _replica(start.job_id, attempt_id, rank, placement, requests[placement.role], rooms)
            for rank, placement in enumerate(start.placements)
        ],
    )
    Journal(session, moved.project_id, start.job_id, attempt_id).tell(
        move.kind,
        _where(start.placements, gang),
        at=now,
        data={"attempt": moved.attempt_count, "nodes": dict(Counter(p.node for p in start.placements))},
    )
    return attempt_id


def _replica(
    job_id: JobId,
    attempt_id: AttemptId,
    rank: int,
    placement: Placement,
    request: Request,
    rooms: Mapping[str, _Room],
) -> dict[str, object]:
    return {
        "id": new_id("rep"),
        "attempt_id": attempt_id,
        "job_id": job_id,
        "role": placement.role,
        "index": placement.index,
        "rank": rank,
        "generation": 1,
        "state": ReplicaState.PENDING.value,
        "node": placement.node,
        "gpus": rooms[placement.node].take(request, placement.gpu_model),
        "gpu_model": placement.gpu_model,
        "cpu_milli": request.cpu_milli,
        "memory_bytes": request.memory_bytes,
        "detail": "",
        "facts": {},
        "report_seq": 0,
        "progress": {},
    }


def _rooms(session: Session, names: set[str]) -> dict[str, _Room]:
    """What is free now on these nodes. Raises ``StaleWrite`` when one of them takes no work any more."""
    holders = session.execute(
        select(Replica.node, Replica.cpu_milli, Replica.memory_bytes, Replica.gpus, Replica.gpu_model).where(
            is_holding(), Replica.node.in_(names)
        )
    ).all()
    used = usage(holders)
    held: defaultdict[str, set[str]] = defaultdict(set)
    for row in holders:
        held[row.node].update(row.gpus)
    rooms: dict[str, _Room] = {}
    for node in session.scalars(select(Node).where(Node.name.in_(names))):
        view = node_view(node, used.get(node.name, Amounts()))
        if not view.is_schedulable:
            raise StaleWrite(f"node {node.name} {view.why_not}")
        gpus: defaultdict[str, list[str]] = defaultdict(list)
        for gpu in node.gpus:
            if held[node.name].isdisjoint([gpu["id"], *gpu.get("formerly", ())]):
                gpus[gpu["model"]].append(gpu["id"])
        # Where others use the engine, too, fewer may be free than there are ids: they are picked by the engine.
        free = {model: ids[: view.free.gpus.get(model, 0)] for model, ids in gpus.items()}
        rooms[node.name] = _Room(view.free.cpu_milli, view.free.memory_bytes, free)
    if rooms.keys() != names:
        raise StaleWrite("a node of the plan is gone")
    return rooms


def _where(placements: Sequence[Placement], gang: Gang) -> str:
    by_node = Counter(placement.node for placement in placements)
    if len(by_node) == 1:
        node = next(iter(by_node))
        return f"Placed on {node}." if gang.size == 1 else f"Placed on {node}: all {gang.size} replicas fit there."
    listed = ", ".join(f"{node} ({count})" for node, count in sorted(by_node.items())[:8])
    more = f" and {len(by_node) - 8} more" if len(by_node) > 8 else ""
    return f"Placed on {len(by_node)} nodes: {listed}{more}; no single node has room for all {gang.size} replicas."
