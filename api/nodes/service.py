"""Nodes, what is used on them, and cordons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select
from trainmaster.wire.admin import NodeView

from api.auth import Caller
from api.work import Work
from core.db.repositories.events import append_event
from core.db.tables import Node, Replica
from core.domain.errors import NotFound
from core.domain.resources import Amounts
from core.domain.states import ReplicaState

_ENDED = [state.value for state in ReplicaState if state.is_terminal]


def list_nodes(work: Work) -> list[NodeView]:
    used, counts = _used(work)
    nodes = work.session.scalars(select(Node).order_by(Node.name))
    return [_view_of(node, used.get(node.name, Amounts()), counts.get(node.name, 0)) for node in nodes]


def get_node(work: Work, name: str) -> NodeView:
    node = _load(work, name)
    used, counts = _used(work, name)
    return _view_of(node, used.get(name, Amounts()), counts.get(name, 0))


def cordon(work: Work, caller: Caller, name: str, reason: str) -> NodeView:
    """No new replica is placed here; those that run go on. Again: the reason is replaced."""
    return _set_cordon(work, caller, name, reason, is_cordoned=True)


def uncordon(work: Work, caller: Caller, name: str, reason: str) -> NodeView:
    return _set_cordon(work, caller, name, reason, is_cordoned=False)


def _set_cordon(work: Work, caller: Caller, name: str, reason: str, *, is_cordoned: bool) -> NodeView:
    node = _load(work, name)
    kept = reason if is_cordoned else ""
    if node.is_cordoned != is_cordoned or node.cordon_reason != kept:
        node.is_cordoned = is_cordoned
        node.cordon_reason = kept
        append_event(
            work.session,
            at=work.now,
            kind="node.cordoned" if is_cordoned else "node.uncordoned",
            actor=caller.actor,
            reason=reason,
            data={"node": name},
        )
        work.ring("tick")
    return get_node(work, name)


def _load(work: Work, name: str) -> Node:
    node = work.session.get(Node, name)
    if node is None:
        raise NotFound(f"There is no node {name!r}; `GET /api/v1/nodes` lists them.")
    return node


def _used(work: Work, name: str | None = None) -> tuple[Mapping[str, Amounts], Mapping[str, int]]:
    """What live replicas hold, and how many they are, by node."""
    live = [Replica.state.not_in(_ENDED)] + ([Replica.node == name] if name is not None else [])
    sums = select(
        Replica.node, func.sum(Replica.cpu_milli), func.sum(Replica.memory_bytes), func.count(Replica.id)
    ).where(*live)
    gpus: dict[str, dict[str, int]] = {}
    rows = select(Replica.node, Replica.gpu_model, Replica.gpus).where(*live, Replica.gpu_model.is_not(None))
    for node, model, devices in work.session.execute(rows):
        if model is None:
            continue
        counts = gpus.setdefault(node, {})
        counts[model] = counts.get(model, 0) + len(devices)
    used: dict[str, Amounts] = {}
    counted: dict[str, int] = {}
    for node, cpu, memory, count in work.session.execute(sums.group_by(Replica.node)):
        used[node] = Amounts(int(cpu), int(memory), gpus.get(node, {}))
        counted[node] = count
    return used, counted


def _view_of(node: Node, used: Amounts, replicas: int) -> NodeView:
    labels: dict[str, Any] = node.labels
    return NodeView(
        name=node.name,
        executor=node.executor,
        labels={key: str(value) for key, value in labels.items()},
        allocatable=node.allocatable,
        used=used.to_json(),
        gpus=node.gpus,
        is_ready=node.is_ready,
        condition=node.condition,
        is_cordoned=node.is_cordoned,
        cordon_reason=node.cordon_reason,
        seen_at=node.seen_at,
        replicas=replicas,
    )
