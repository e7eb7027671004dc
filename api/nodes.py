"""Nodes: usage and its holders, quarantines, and the actions of admins: cordon, drain, release, labels, removal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import delete, select
from trainmaster.wire.admin import HolderView, NodeLabelsSet, NodeView, QuarantineJob, QuarantineView, SuspicionView
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import ReasonRequest

from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.auth import Caller, PlatformAdmin, Reader
from api.http.paging import PageParams, rows_by_name
from api.http.routing import new_router
from core.db.engine import UntypedRow
from core.db.repositories.nodes import is_holding, labels_of, usage, used_gpus
from core.db.tables import Job, Node, NodeFailure, Project, Replica
from core.domain.errors import Conflict, NotFound
from core.domain.jobs.states import ReplicaState
from core.domain.sharing.quarantine import NodeFailureFact, describe_causes
from core.domain.sharing.resources import Amounts

router = new_router("nodes")

# The scheduler observes nodes every few seconds. A ready node that it has not observed for so long belongs to an
# executor no longer in use; or the scheduler is down, and adds the node again when it is back.
_UNSEEN_FOR: Final = timedelta(minutes=10)


@router.get("/nodes", operation_id="list_nodes", summary="The nodes and their usage")
def list_nodes(caller: Reader, context: AppContextDep, page: PageParams) -> Page[NodeView]:
    """In order of name."""
    with context.read() as work:
        rows, cursor = rows_by_name(work.session, select(Node), Node.name, page)
        used, counts = _used(work, [name for _, name in rows])
        hidden = _hidden_jobs(work, caller, [node for node, _ in rows])
        items = [_view_of(node, used.get(name, Amounts()), counts.get(name, 0), hidden) for node, name in rows]
        return Page(items=items, next_cursor=cursor)


@router.get("/holders", operation_id="list_holders", summary="The replicas that hold resources on the nodes")
def list_holders(caller: Reader, context: AppContextDep, page: PageParams) -> Page[HolderView]:
    """All resources that are not free to the planner. Jobs of projects that you may not see are not named."""
    query = (
        select(
            Replica.node, Replica.gpus, Replica.gpu_model, Replica.gpu_milli, Replica.cpu_milli, Replica.memory_bytes,
            Replica.role, Replica.index.label("replica_index"), Replica.state, Job.id.label("job_id"),
            Job.name.label("job"), Job.project_id, Project.name.label("project"),
        )
        .join(Job, Job.id == Replica.job_id)
        .join(Project, Project.id == Job.project_id)
        .where(is_holding())
    )  # fmt: skip
    with context.read() as work:
        rows, cursor = rows_by_name(work.session, query, Replica.id, page)
    return Page(items=[_holder_view(row, caller) for row in rows], next_cursor=cursor)


@router.get("/nodes/{node}", operation_id="get_node", summary="One node")
def get_node(node: str, caller: Reader, context: AppContextDep) -> NodeView:
    with context.read() as work:
        return _view(work, caller, _load(work, node))


@router.post("/nodes/{node}/cordon", operation_id="cordon_node", summary="Close a node to new replicas")
def cordon_node(
    node: str, caller: PlatformAdmin, context: AppContextDep, body: ReasonRequest | None = None
) -> NodeView:
    """Running replicas continue. Repeating the request replaces the reason."""
    with context.write() as work:
        return _close(work, caller, node, body, kind="node.cordoned")


@router.post("/nodes/{node}/drain", operation_id="drain_node", summary="Drain a node")
def drain_node(node: str, caller: PlatformAdmin, context: AppContextDep, body: ReasonRequest | None = None) -> NodeView:
    """Closes the node to new replicas. Its running jobs are stopped with their grace period and resume elsewhere from
    their last checkpoint, which does not count as a restart. Jobs that are not preemptible run to their end.
    `uncordon` opens the node again.
    """
    with context.write() as work:
        return _close(work, caller, node, body, kind="node.draining")


@router.post("/nodes/{node}/uncordon", operation_id="uncordon_node", summary="Open a cordoned or drained node")
def uncordon_node(
    node: str, caller: PlatformAdmin, context: AppContextDep, body: ReasonRequest | None = None
) -> NodeView:
    with context.write() as work:
        return _close(work, caller, node, body, kind="node.uncordoned")


@router.post("/nodes/{node}/release", operation_id="release_node", summary="Lift a node's quarantine")
def release_node(
    node: str, caller: PlatformAdmin, context: AppContextDep, body: ReasonRequest | None = None
) -> NodeView:
    """The node takes new replicas again, and its earlier failures are forgotten. A cordon stays."""
    with context.write() as work:
        # Locked: the scheduler's decision is applied wholly before or after this. A mixture would leave the node closed
        # without a quarantine count.
        row = _load(work, node, is_locked=True)
        if row.quarantined_at is not None or row.suspicion is not None:
            _lift_quarantine(row, work.now)
            _record_event(work, caller, row, "node.released", body.reason if body else "")
        return _view(work, caller, row)


@router.put("/nodes/{node}/labels", operation_id="set_node_labels", summary="Set the admins' labels of a node")
def set_node_labels(node: str, body: NodeLabelsSet, caller: PlatformAdmin, context: AppContextDep) -> NodeView:
    """Replaces the admins' labels. They take precedence over labels from the executor; node selectors match both."""
    with context.write() as work:
        row = _load(work, node)
        if row.admin_labels != body.labels:
            row.admin_labels = dict(body.labels)
            _record_event(work, caller, row, "node.labelled", labels=row.admin_labels)
        return _view(work, caller, row)


@router.delete("/nodes/{node}", operation_id="delete_node", summary="Remove a node that is gone", status_code=204)
def delete_node(node: str, caller: PlatformAdmin, context: AppContextDep) -> None:
    """Refused while it is ready or has replicas. A node that returns is added again, without cordon, quarantine and
    labels.
    """
    with context.write() as work:
        row = _load(work, node)
        if row.is_ready and row.seen_at > work.now - _UNSEEN_FOR:
            raise Conflict(f"Node {node} is ready; remove it from the executor first, or cordon it.")
        holding = work.session.scalars(
            select(Replica.job_id).where(is_holding(), Replica.node == node).distinct()
        ).all()
        if holding:
            shown = ", ".join(sorted(holding)[:5]) + (f" and {len(holding) - 5} more" if len(holding) > 5 else "")
            raise Conflict(f"Node {node} still has replicas of {shown}; wait until they have ended, or cancel them.")
        work.session.delete(row)
        work.session.execute(delete(NodeFailure).where(NodeFailure.node == node))
        _record_event(work, caller, row, "node.removed")


def _close(work: UnitOfWork, caller: Caller, name: str, body: ReasonRequest | None, *, kind: str) -> NodeView:
    node = _load(work, name)
    reason = body.reason if body else ""
    is_closed, is_draining = kind != "node.uncordoned", kind == "node.draining"
    wanted = (is_closed, is_draining, reason if is_closed else "")
    if (node.is_cordoned, node.is_draining, node.cordon_reason) != wanted:
        node.is_cordoned, node.is_draining, node.cordon_reason = wanted
        _record_event(work, caller, node, kind, reason)
    return _view(work, caller, node)


def _record_event(
    work: UnitOfWork, caller: Caller, node: Node, kind: str, reason: str = "", **data: Mapping[str, str]
) -> None:
    work.record_event(kind, caller.actor, reason=reason, data={"node": node.name, **data})
    work.notify("tick")


def _load(work: UnitOfWork, name: str, *, is_locked: bool = False) -> Node:
    """``is_locked``: reload the row and lock it until the transaction ends."""
    node = work.session.get(Node, name, with_for_update=is_locked or None, populate_existing=is_locked)
    if node is None:
        raise NotFound(f"There is no node {name!r}; `GET /api/v1/nodes` lists them.")
    return node


def _used(work: UnitOfWork, names: Sequence[str]) -> tuple[Mapping[str, Amounts], Mapping[str, int]]:
    """Allocated resources and number of live replicas, by node."""
    rows = work.session.execute(
        select(
            Replica.node, Replica.cpu_milli, Replica.memory_bytes, Replica.gpus, Replica.gpu_model, Replica.gpu_milli,
            Replica.state,
        ).where(is_holding(), Replica.node.in_(names))
    ).all()  # fmt: skip
    return usage(rows), Counter(row.node for row in rows if not ReplicaState(row.state).is_terminal)


def _view(work: UnitOfWork, caller: Caller, node: Node) -> NodeView:
    used, counts = _used(work, [node.name])
    hidden = _hidden_jobs(work, caller, [node])
    return _view_of(node, used.get(node.name, Amounts()), counts.get(node.name, 0), hidden)


def _view_of(node: Node, used: Amounts, replicas: int, hidden: frozenset[str]) -> NodeView:
    return NodeView(
        name=node.name,
        executor=node.executor,
        labels=labels_of(node),
        admin_labels=node.admin_labels,
        allocatable=node.allocatable,
        used={**used.to_json(), "gpus": used_gpus(used)},
        gpus=node.gpus,
        is_ready=node.is_ready,
        condition=node.condition,
        is_cordoned=node.is_cordoned,
        is_draining=node.is_draining,
        cordon_reason=node.cordon_reason,
        quarantine=_quarantine_view(node, hidden),
        suspicion=_suspicion_view(node, hidden),
        seen_at=node.seen_at,
        replicas=replicas,
    )


def _holder_view(row: UntypedRow, caller: Caller) -> HolderView:
    is_known = caller.is_admin or row.project_id in caller.projects
    return HolderView(
        node=row.node,
        gpus=[str(gpu) for gpu in row.gpus],
        gpu_model=row.gpu_model,
        gpu_part=row.gpu_milli / 1000 if row.gpu_milli else None,
        cpu_milli=row.cpu_milli,
        memory_bytes=row.memory_bytes,
        job_id=row.job_id if is_known else None,
        job=row.job if is_known else None,
        project=row.project if is_known else None,
        role=row.role if is_known else None,
        index=row.replica_index if is_known else None,
        state=row.state if is_known else None,
    )


def _hidden_jobs(work: UnitOfWork, caller: Caller, nodes: Iterable[Node]) -> frozenset[str]:
    """The ids of jobs in the causes of quarantines and suspicions that are hidden from ``caller``."""
    if caller.is_admin:
        return frozenset()
    jobs = {
        cause.job_id
        for node in nodes
        for stored in (node.quarantine, node.suspicion)
        for cause in _causes(node, stored)
    }
    if not jobs:
        return frozenset()
    rows = work.session.execute(select(Job.id, Job.project_id).where(Job.id.in_(sorted(jobs))))
    return frozenset(jobs) - {row.id for row in rows if row.project_id in caller.projects}


def _quarantine_view(node: Node, hidden: frozenset[str]) -> QuarantineView | None:
    if node.quarantined_at is None:
        return None
    causes = _causes(node, node.quarantine)
    return QuarantineView(
        since=node.quarantined_at,
        until=node.quarantined_until,
        why=describe_causes(causes, hidden) if causes else "",
        jobs=_quarantine_jobs(causes, hidden),
        count=node.quarantine_count,
    )


def _suspicion_view(node: Node, hidden: frozenset[str]) -> SuspicionView | None:
    if node.suspicion is None:
        return None
    causes = _causes(node, node.suspicion)
    return SuspicionView(
        why=describe_causes(causes, hidden), why_not=node.suspicion["why_not"], jobs=_quarantine_jobs(causes, hidden)
    )


def _lift_quarantine(node: Node, now: datetime) -> None:
    """Lift the quarantine and forget the failures: the next quarantine counts as the first in a row.

    ``now`` may be before a quarantine that was set while this waited for the lock; its causes are forgotten, too.
    """
    now = now if node.quarantined_at is None else max(now, node.quarantined_at)
    node.quarantine = node.quarantined_at = node.quarantined_until = node.suspicion = None
    node.trusted_since, node.quarantine_count = now, 0


def _causes(node: Node, stored: Mapping[str, Any] | None) -> list[NodeFailureFact]:
    return [NodeFailureFact.from_json(node.name, cause) for cause in (stored or {}).get("causes", ())]


def _quarantine_jobs(causes: Iterable[NodeFailureFact], hidden: frozenset[str]) -> list[QuarantineJob]:
    return [
        QuarantineJob(at=cause.at, error=cause.error)
        if cause.job_id in hidden
        else QuarantineJob(job_id=cause.job_id, job=cause.job, at=cause.at, error=cause.error)
        for cause in causes
    ]
