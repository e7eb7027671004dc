"""Nodes, their usage, and the actions of admins: cordon, drain, release, labels, removal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from sqlalchemy import delete, select
from trainmaster.wire.admin import NodeView
from trainmaster.wire.base import Page

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller
from api.http.paging import PageQuery, rows_by_name
from api.nodes import quarantines
from core.db.repositories.events import append_event
from core.db.repositories.nodes import is_holding, labels_of, usage, used_gpus
from core.db.tables import Node, NodeFailure, Replica
from core.domain.errors import Conflict, NotFound
from core.domain.jobs.states import ReplicaState
from core.domain.sharing.resources import Amounts

# The scheduler observes nodes every few seconds. A ready node that it has not observed for so long belongs to an
# executor no longer in use; or the scheduler is down, and adds the node again when it is back.
UNSEEN_FOR: Final = timedelta(minutes=10)


def list_nodes(work: UnitOfWork, caller: Caller, page: PageQuery) -> Page[NodeView]:
    rows, cursor = rows_by_name(work.session, select(Node), Node.name, page)
    used, counts = _used(work, [name for _, name in rows])
    hidden = quarantines.hidden_jobs(work, caller, [node for node, _ in rows])
    items = [_view_of(node, used.get(name, Amounts()), counts.get(name, 0), hidden) for node, name in rows]
    return Page(items=items, next_cursor=cursor)


def get_node(work: UnitOfWork, caller: Caller, name: str) -> NodeView:
    node = _load(work, name)
    used, counts = _used(work, [name])
    hidden = quarantines.hidden_jobs(work, caller, [node])
    return _view_of(node, used.get(name, Amounts()), counts.get(name, 0), hidden)


def cordon(work: UnitOfWork, caller: Caller, name: str, reason: str) -> NodeView:
    """Close the node to new replicas; running ones continue. Repeating replaces the reason."""
    return _close(work, caller, name, reason, kind="node.cordoned")


def drain(work: UnitOfWork, caller: Caller, name: str, reason: str) -> NodeView:
    """Close the node to new replicas, and stop its jobs, which resume elsewhere from their last checkpoint."""
    return _close(work, caller, name, reason, kind="node.draining")


def uncordon(work: UnitOfWork, caller: Caller, name: str, reason: str) -> NodeView:
    """Open it again, whether it was cordoned or drained."""
    return _close(work, caller, name, reason, kind="node.uncordoned")


def release(work: UnitOfWork, caller: Caller, name: str, reason: str) -> NodeView:
    """Lift the node's quarantine or suspicion, and forget its failures. Idempotent."""
    # Locked: the scheduler's decision is applied wholly before or after this. A mixture would leave the node closed
    # without a quarantine count.
    node = _load(work, name, is_locked=True)
    if node.quarantined_at is not None or node.suspicion is not None:
        quarantines.lift(node, work.now)
        append_event(
            work.session, at=work.now, kind="node.released", actor=caller.actor, reason=reason, data={"node": name}
        )
        work.notify("tick")
    return get_node(work, caller, name)


def set_labels(work: UnitOfWork, caller: Caller, name: str, labels: Mapping[str, str]) -> NodeView:
    """Replace the admins' labels; those from the executor stay beneath them."""
    node = _load(work, name)
    if node.admin_labels != labels:
        node.admin_labels = dict(labels)
        append_event(
            work.session,
            at=work.now,
            kind="node.labelled",
            actor=caller.actor,
            data={"node": name, "labels": dict(labels)},
        )
        work.notify("tick")
    return get_node(work, caller, name)


def remove(work: UnitOfWork, caller: Caller, name: str) -> None:
    """Remove a node that is gone, with its cordon, labels and failures.

    Raises:
        Conflict: the node is ready, or replicas may still run on it.
    """
    node = _load(work, name)
    if node.is_ready and node.seen_at > work.now - UNSEEN_FOR:
        raise Conflict(f"Node {name} is ready; remove it from the executor first, or cordon it.")
    holding = work.session.scalars(select(Replica.job_id).where(is_holding(), Replica.node == name).distinct()).all()
    if holding:
        shown = ", ".join(sorted(holding)[:5]) + (f" and {len(holding) - 5} more" if len(holding) > 5 else "")
        raise Conflict(f"Node {name} still has replicas of {shown}; wait until they have ended, or cancel them.")
    work.session.delete(node)
    work.session.execute(delete(NodeFailure).where(NodeFailure.node == name))
    append_event(work.session, at=work.now, kind="node.removed", actor=caller.actor, data={"node": name})
    work.notify("tick")


def _close(work: UnitOfWork, caller: Caller, name: str, reason: str, *, kind: str) -> NodeView:
    node = _load(work, name)
    is_closed, is_draining = kind != "node.uncordoned", kind == "node.draining"
    wanted = (is_closed, is_draining, reason if is_closed else "")
    if (node.is_cordoned, node.is_draining, node.cordon_reason) != wanted:
        node.is_cordoned, node.is_draining, node.cordon_reason = wanted
        append_event(
            work.session,
            at=work.now,
            kind=kind,
            actor=caller.actor,
            reason=reason,
            data={"node": name},
        )
        work.notify("tick")
    return get_node(work, caller, name)


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
        quarantine=quarantines.view(node, hidden),
        suspicion=quarantines.suspicion(node, hidden),
        seen_at=node.seen_at,
        replicas=replicas,
    )
