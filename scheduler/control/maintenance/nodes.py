"""Keeping the table of nodes in line with the executor."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.bootstrap import ensure_database_id
from core.db.repositories.events import append_event
from core.db.tables import Node
from core.domain.sharing.gpus import normal_model
from core.domain.sharing.resources import Amounts
from core.wakeups import TOPIC_TICK
from executors.base import NodeInfo
from scheduler.control import fence
from scheduler.control.context import ControlContext
from scheduler.control.journal import EXECUTOR

log = structlog.get_logger(__name__)

NODES_LEASE: Final = "nodes"


def sync_nodes(control: ControlContext) -> int:
    """Write changes of the nodes; returns the number of changes.

    A node that is not ready, or that the executor does not list any more, keeps ``seen_at``: from then on its replicas
    have ``ControlContext.node_grace`` until they count as lost. A cordon is the administrator's and stays.

    Raises:
        ExecutorTryAgain: the engine is away; nothing is concluded from that.
        Unavailable: the database is away.
    """
    changes = 0
    # Where another process has begun since, as when two start at once, what it writes is as new.
    with fence.leased(control, NODES_LEASE) as lease:
        if lease is not None:
            infos = control.executor.nodes(database_id=ensure_database_id(control.sessions))
            with lease.fenced() as session:
                changes = _write(session, infos, control.executor.name, control.clock())
    if changes:
        control.wakeup.notify(TOPIC_TICK)
    return changes


def _write(session: Session, infos: Sequence[NodeInfo], executor: str, now: datetime) -> int:
    # Those of another executor, too: who changes the executor may have the same machine again, and leaves the others.
    unlisted_nodes = {node.name: node for node in session.scalars(select(Node))}
    changes = 0
    for info in infos:
        node = unlisted_nodes.pop(info.name, None)
        if node is None:
            node = Node(name=info.name, executor=executor, seen_at=now, is_cordoned=False, cordon_reason="")
            session.add(node)
            was_ready = None
        else:
            was_ready = node.is_ready
            node.executor = executor
        if info.is_ready or was_ready:
            node.seen_at = now  # the grace of a node that has just become unready begins now, not at its last sync
        changes += _update(node, info)
        if was_ready is not info.is_ready:
            _add_event(session, node, now)
    for node in unlisted_nodes.values():
        if node.is_ready:
            node.is_ready, node.condition, node.seen_at = False, "The executor does not list it any more.", now
            _add_event(session, node, now)
            changes += 1
    return changes


def _update(node: Node, info: NodeInfo) -> int:
    values: dict[str, Any] = {
        "labels": dict(info.labels),
        "allocatable": _with_normal_models(info.allocatable).to_json(),
        "gpus": [
            {
                "id": gpu.id,
                "model": normal_model(gpu.model),
                "memory_bytes": gpu.memory_bytes,
                "formerly": list(gpu.formerly),
            }
            for gpu in info.gpus
        ],
        "is_ready": info.is_ready,
        "condition": info.condition,
        "is_draining_in_engine": info.is_draining,
    }
    changed = [name for name, value in values.items() if getattr(node, name) != value]
    for name in changed:
        setattr(node, name, values[name])
    return len(changed)


def _with_normal_models(whole: Amounts) -> Amounts:
    """Spellings of GPU models differ between executors; they are normalised here, so that equal GPUs have equal
    names.
    """
    gpus: dict[str, int] = {}
    for name, count in whole.gpus.items():
        model = normal_model(name)
        gpus[model] = gpus.get(model, 0) + count
    return Amounts(whole.cpu_milli, whole.memory_bytes, gpus)


def _add_event(session: Session, node: Node, now: datetime) -> None:
    kind = "node.ready" if node.is_ready else "node.unready"
    reason = f"Node {node.name} takes work." if node.is_ready else f"Node {node.name}: {node.condition}"
    append_event(session, at=now, kind=kind, actor=EXECUTOR, reason=reason, data={"node": node.name})
    log.info(kind, node=node.name, condition=node.condition)
