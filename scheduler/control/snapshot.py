"""Reading everything that a plan depends on, in one short look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from core.db.tables import Attempt, Job, Node, Project, Replica, User, WaitReason
from core.domain.ids import JobId, NodeId
from core.domain.resources import Amounts, Gang
from core.domain.states import JobState, ReplicaState, Wanted
from scheduler.control.rows import is_live
from scheduler.planning.model import NodeView, QueuedGang, Reason, ReasonCode, RunningGang, Snapshot

_GANG_CACHE_SIZE: Final = 20_000


@dataclass(frozen=True, slots=True)
class Loaded:
    """A snapshot and what applying its plan compares with.

    ``next_due``: when the next job's back-off is over. ``shape_reasons`` and ``own_reasons`` are what is written now.
    """

    snapshot: Snapshot
    generations: Mapping[JobId, int]
    shape_reasons: Mapping[str, Reason]
    own_reasons: Mapping[JobId, Reason]
    next_due: datetime | None


@dataclass(slots=True)
class GangCache:
    """Gangs by shape: equal shapes are equal gangs, and a queue of thousands has a handful of them."""

    _gangs: dict[str, Gang] = field(default_factory=dict)

    def missing(self, shapes: Iterable[str]) -> set[str]:
        return set(shapes) - self._gangs.keys()

    def add(self, shape: str, gang: Gang) -> None:
        if len(self._gangs) >= _GANG_CACHE_SIZE:
            self._gangs.clear()
        self._gangs[shape] = gang

    def __getitem__(self, shape: str) -> Gang:
        return self._gangs[shape]


def fingerprint(session: Session, now: datetime) -> tuple[Any, ...]:
    """A few cheap numbers that change whenever a plan could: queue, holders, nodes."""
    queue = session.execute(
        select(func.count(), func.max(Job.updated_at)).where(Job.state == JobState.QUEUED.value, _is_due(now))
    ).one()
    holders = session.execute(select(func.count(), func.max(Replica.id)).where(is_holding())).one()
    nodes = session.execute(select(Node.name, Node.is_ready, Node.is_cordoned, Node.allocatable, Node.labels)).all()
    return (tuple(queue), tuple(holders), repr(sorted(nodes, key=lambda node: node.name)))


def load_snapshot(session: Session, gangs: GangCache, now: datetime) -> Loaded:
    """Queue, running gangs and nodes as one consistent view.

    Jobs in back-off are left out; they keep their own reason.
    """
    queued_rows = session.execute(
        select(
            Job.id, Job.name, Job.priority, Job.queued_at, Job.shape, Job.generation, Job.max_run_time_s,
            Project.name.label("project"), User.name.label("user"),
        )
        .join(Project, Project.id == Job.project_id)
        .join(User, User.id == Job.user_id)
        .where(Job.state == JobState.QUEUED.value, Job.wanted == Wanted.RUN.value, _is_due(now))
    ).all()  # fmt: skip
    running_rows = session.execute(
        select(
            Job.id, Job.name, Job.priority, Job.shape, Job.max_run_time_s,
            Project.name.label("project"), Attempt.started_at,
        )
        .join(Attempt, Attempt.job_id == Job.id)
        .join(Project, Project.id == Job.project_id)
        .where(is_live())
    ).all()  # fmt: skip
    _fill(session, gangs, {row.shape for row in queued_rows} | {row.shape for row in running_rows})
    holders = session.execute(
        select(
            Replica.job_id, Replica.role, Replica.node, Replica.cpu_milli, Replica.memory_bytes, Replica.gpus,
            Replica.gpu_model,
        )
        .where(is_holding())
        .order_by(Replica.job_id, Replica.rank)
    ).all()  # fmt: skip
    used = usage(holders)
    places: defaultdict[str, list[tuple[str, NodeId]]] = defaultdict(list)
    models: defaultdict[str, list[str | None]] = defaultdict(list)
    for row in holders:
        places[row.job_id].append((row.role, NodeId(row.node)))
        models[row.job_id].append(row.gpu_model)
    snapshot = Snapshot(
        now=now,
        nodes=tuple(node_view(node, used.get(node.name, Amounts())) for node in session.scalars(select(Node))),
        queued=tuple(
            QueuedGang(
                JobId(r.id), r.name, r.project, r.user, r.priority, r.queued_at, gangs[r.shape], r.shape,
                r.max_run_time_s,
            )
            for r in queued_rows
        ),
        running=tuple(
            RunningGang(
                JobId(r.id), r.name, r.project, r.priority, gangs[r.shape], tuple(places[r.id]),
                _expected_end(r.started_at, r.max_run_time_s), tuple(models[r.id]),
            )
            for r in running_rows
        ),
    )  # fmt: skip
    return Loaded(
        snapshot=snapshot,
        generations={JobId(r.id): r.generation for r in queued_rows},
        shape_reasons=_shape_reasons(session),
        own_reasons=_own_reasons(session, now),
        next_due=session.execute(
            select(func.min(Job.not_before)).where(Job.state == JobState.QUEUED.value, Job.not_before > now)
        ).scalar_one(),
    )


def is_holding() -> ColumnElement[bool]:
    """Replicas whose place is not free: all of a live attempt but those that finished by themselves.

    One that was stopped, lost or never created may still be on its way somewhere: its place is free when the executor
    has confirmed that nothing of the attempt is left. One that failed may be started again where it was.
    """
    live = select(Attempt.id).where(is_live())
    return and_(Replica.attempt_id.in_(live), Replica.state != ReplicaState.SUCCEEDED.value)


def usage(holders: Iterable[Any]) -> dict[str, Amounts]:
    """What the rows (node, cpu_milli, memory_bytes, gpus, gpu_model) hold, by node."""
    used: dict[str, Amounts] = {}
    for row in holders:
        before = used.get(row.node, Amounts())
        gpus = dict(before.gpus)
        if row.gpu_model is not None:
            gpus[row.gpu_model] = gpus.get(row.gpu_model, 0) + len(row.gpus)
        used[row.node] = Amounts(before.cpu_milli + row.cpu_milli, before.memory_bytes + row.memory_bytes, gpus)
    return used


def node_view(node: Node, used: Amounts) -> NodeView:
    """The node as the planner sees it."""
    total = Amounts.from_json(node.allocatable)
    why_not = ""
    if not node.is_ready:
        why_not = "is not ready"
    elif node.is_cordoned:
        why_not = "is cordoned"
    return NodeView(
        id=NodeId(node.name),
        labels={key: str(value) for key, value in node.labels.items()},
        allocatable=total,
        free=Amounts(
            max(0, total.cpu_milli - used.cpu_milli),
            max(0, total.memory_bytes - used.memory_bytes),
            {model: max(0, count - used.gpus.get(model, 0)) for model, count in total.gpus.items()},
        ),
        is_schedulable=not why_not,
        why_not=why_not,
    )


def _is_due(now: datetime) -> Any:
    return or_(Job.not_before.is_(None), Job.not_before <= now)


def _fill(session: Session, gangs: GangCache, shapes: set[str]) -> None:
    missing = sorted(gangs.missing(shapes))
    for begin in range(0, len(missing), 500):  # SQLite takes a limited number of parameters
        chunk = missing[begin : begin + 500]
        # One job of each shape is enough.
        firsts = select(func.min(Job.id)).where(Job.shape.in_(chunk)).group_by(Job.shape).scalar_subquery()
        for shape, gang in session.execute(select(Job.shape, Job.gang).where(Job.id.in_(firsts))):
            gangs.add(shape, Gang.from_json(gang))


def _expected_end(started_at: datetime | None, max_run_time_s: float | None) -> datetime | None:
    if started_at is None or max_run_time_s is None:
        return None
    return started_at + timedelta(seconds=max_run_time_s)


def _shape_reasons(session: Session) -> dict[str, Reason]:
    rows = session.execute(select(WaitReason.shape, WaitReason.code, WaitReason.sentence, WaitReason.numbers))
    return {row.shape: Reason(ReasonCode(row.code), row.sentence, row.numbers) for row in rows}


def _own_reasons(session: Session, now: datetime) -> dict[JobId, Reason]:
    rows = session.execute(
        select(Job.id, Job.wait_reason).where(
            Job.state == JobState.QUEUED.value, Job.wait_reason.is_not(None), _is_due(now)
        )
    )
    return {JobId(row.id): reason_from_json(row.wait_reason) for row in rows if row.wait_reason is not None}


def reason_from_json(data: Mapping[str, Any]) -> Reason:
    return Reason(ReasonCode(data["code"]), data["sentence"], dict(data.get("numbers", {})))


def reason_to_json(reason: Reason) -> dict[str, Any]:
    return {"code": reason.code.value, "sentence": reason.sentence, "numbers": dict(reason.numbers)}
