"""Nodes and the resources held on them, cached between ticks: in a large cluster little changes from tick to tick. All
is compared with the database; only what differs is read whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, TypeAlias
from typing import cast as typed

import orjson
from sqlalchemy import Table, Text, case, cast, func, or_, select
from sqlalchemy.orm import Session

from core.db.engine import UntypedSelect
from core.db.repositories.nodes import add_part, is_holding, merged_labels, taken
from core.db.tables import Attempt, Node, Replica
from core.domain.ids import NodeId
from core.domain.sharing.quarantine import NodeFailureFact, at_text, errors_text, until_text
from core.domain.sharing.resources import Amounts
from scheduler.planning.model import NodeSnapshot

_CHUNK: Final = 500
_NOTHING: Final = Amounts()

# The JSON columns as text: comparing them is much cheaper than parsing them.
_nodes, _replicas = typed("Table", Node.__table__), typed("Table", Replica.__table__)
_NODES: Final[UntypedSelect] = select(
    _nodes.c.name, _nodes.c.is_ready, _nodes.c.condition, _nodes.c.is_cordoned,
    or_(_nodes.c.is_draining, _nodes.c.is_draining_in_engine),
    _nodes.c.quarantined_at, _nodes.c.quarantined_until, cast(_nodes.c.quarantine, Text),
    cast(_nodes.c.suspicion, Text), cast(_nodes.c.allocatable, Text), cast(_nodes.c.labels, Text),
    cast(_nodes.c.admin_labels, Text),
)  # fmt: skip
# What an attempt's replicas hold changes together with one of these: resources that are released before the attempt
# ends are set to zero. In an elastic gang one replica may return while another leaves, with equal sums; a returning
# replica has a higher generation, and every write to an attempt raises the attempt's own.
_attempts = typed("Table", Attempt.__table__).alias()
_WRITES: Final = case(
    (
        func.sum(_replicas.c.generation) > func.count(),
        select(_attempts.c.generation).where(_attempts.c.id == _replicas.c.attempt_id).scalar_subquery(),
    ),
    else_=0,
)
_HOLDINGS: Final[UntypedSelect] = (
    select(
        _replicas.c.attempt_id, func.count(), func.sum(_replicas.c.generation), func.sum(_replicas.c.memory_bytes),
        func.max(_replicas.c.id), _WRITES,
    )
    .where(is_holding())
    .group_by(_replicas.c.attempt_id)
)  # fmt: skip

RawNode: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ReplicaHolding:
    """The resources that a replica holds. ``gpu_count``: whole devices of ``gpu_model``; ``gpu_milli``: its part of
    ``gpu``, in thousandths.
    """

    role: str
    node: NodeId
    cpu_milli: int
    memory_bytes: int
    gpu_model: str | None
    gpu_count: int
    gpu: str = ""
    gpu_milli: int = 0
    index: int = 0


@dataclass(slots=True)
class NodeCache:
    """What the last tick read. For one thread."""

    _views: dict[str, tuple[RawNode, Amounts, NodeSnapshot]] = field(default_factory=dict)
    _holdings: dict[str, tuple[tuple[Any, ...], tuple[ReplicaHolding, ...]]] = field(default_factory=dict)

    def holders(self, session: Session) -> Mapping[str, tuple[ReplicaHolding, ...]]:
        """The replicas that hold resources, by attempt, in rank order."""
        found = {row[0]: tuple(row[1:]) for row in session.connection().execute(_HOLDINGS)}
        known = self._holdings
        self._holdings = {
            attempt: known[attempt] for attempt in found if attempt in known and known[attempt][0] == found[attempt]
        }
        fresh = [attempt for attempt in found if attempt not in self._holdings]
        for begin in range(0, len(fresh), _CHUNK):
            read = _read_holders(session, fresh[begin : begin + _CHUNK])
            self._holdings |= {attempt: (found[attempt], tuple(holdings)) for attempt, holdings in read.items()}
        return {attempt: holdings for attempt, (_, holdings) in self._holdings.items()}

    def nodes(self, session: Session, used: Mapping[str, Amounts]) -> tuple[NodeSnapshot, ...]:
        """All nodes, with what is free of them where ``used`` is taken."""
        known = self._views
        self._views = {}
        for raw in raw_nodes(session):
            use = used.get(raw[0], _NOTHING)
            before = known.get(raw[0])
            if before is None or before[0] != raw:
                before = (raw, use, _read(raw, use))
            elif before[1] != use:
                before = (raw, use, _with_use(before[2], use))
            self._views[raw[0]] = before
        return tuple(view for _, _, view in self._views.values())


def raw_nodes(session: Session) -> list[RawNode]:
    """Everything about each node that a plan depends on, by name; only for comparison."""
    return sorted(tuple(row) for row in session.connection().execute(_NODES))


def usage_of(holders: Iterable[tuple[ReplicaHolding, ...]]) -> dict[str, Amounts]:
    """The sums of what they hold, by node."""
    sums: dict[str, list[Any]] = {}
    for gang in holders:
        for holding in gang:
            total = sums.get(holding.node)
            if total is None:
                total = sums[holding.node] = [0, 0, {}, {}]
            total[0] += holding.cpu_milli
            total[1] += holding.memory_bytes
            if holding.gpu_model is None:
                continue
            if holding.gpu_milli:
                add_part(total[3], holding.gpu_model, (holding.gpu,), holding.gpu_milli)
            else:
                total[2][holding.gpu_model] = total[2].get(holding.gpu_model, 0) + holding.gpu_count
    return {node: taken(*total) for node, total in sums.items()}


def node_view(node: Node, used: Amounts) -> NodeSnapshot:
    """The node as the planner sees it."""
    is_draining = node.is_draining or node.is_draining_in_engine
    return _view(
        node.name,
        Amounts.from_json(node.allocatable),
        merged_labels(node.labels, node.admin_labels),
        _why_not(node.condition, node.is_ready, node.is_cordoned, is_draining),
        used,
        is_draining=is_draining,
        quarantine=_quarantine(node.name, node.quarantined_at, node.quarantined_until, node.quarantine),
    )


def _read_holders(session: Session, attempts: list[str]) -> dict[str, list[ReplicaHolding]]:
    rows = session.execute(
        select(
            Replica.attempt_id, Replica.role, Replica.node, Replica.cpu_milli, Replica.memory_bytes, Replica.gpu_model,
            Replica.gpus, Replica.gpu_milli, Replica.index,
        )
        .where(is_holding(), Replica.attempt_id.in_(attempts))
        .order_by(Replica.attempt_id, Replica.rank)
    )  # fmt: skip
    found: dict[str, list[ReplicaHolding]] = {attempt: [] for attempt in attempts}
    for attempt, role, node, cpu_milli, memory_bytes, model, gpus, gpu_milli, index in rows:
        count, gpu = (0, gpus[0]) if gpu_milli else (len(gpus), "")
        found[attempt].append(
            ReplicaHolding(role, NodeId(node), cpu_milli, memory_bytes, model, count, gpu, gpu_milli, index)
        )
    return found


def _read(raw: RawNode, used: Amounts) -> NodeSnapshot:
    name, is_ready, condition, is_cordoned, is_draining, since, until, quarantine, _, *texts = raw
    allocatable, labels, admin_labels = texts
    return _view(
        name,
        Amounts.from_json(orjson.loads(allocatable)),
        merged_labels(orjson.loads(labels), orjson.loads(admin_labels)),
        _why_not(condition, is_ready, is_cordoned, is_draining),
        used,
        is_draining=is_draining,
        quarantine=_quarantine(name, since, until, orjson.loads(quarantine) if quarantine else None),
    )


def _view(
    name: str,
    total: Amounts,
    labels: Mapping[str, str],
    why_not: str,
    used: Amounts,
    *,
    is_draining: bool,
    quarantine: tuple[str, datetime | None] | None,
) -> NodeSnapshot:
    is_quarantined = quarantine is not None and not why_not  # an administrator's reason comes first; it does not expire
    opens_at = None
    if quarantine is not None and is_quarantined:
        why_not, opens_at = quarantine
    return NodeSnapshot(
        NodeId(name), labels, total, _left(total, used), not why_not, why_not, is_draining, is_quarantined, opens_at
    )


def _with_use(view: NodeSnapshot, used: Amounts) -> NodeSnapshot:
    return replace(view, free=_left(view.allocatable, used))


def _left(total: Amounts, used: Amounts) -> Amounts:
    return Amounts(
        max(0, total.cpu_milli - used.cpu_milli),
        max(0, total.memory_bytes - used.memory_bytes),
        {model: max(0, count - used.gpus.get(model, 0)) for model, count in total.gpus.items()},
        used.shares,
    )


def _quarantine(
    name: str, since: datetime | None, until: datetime | None, why: Mapping[str, Any] | None
) -> tuple[str, datetime | None] | None:
    """A phrase that follows the node's name, and when the quarantine ends. All users read it: it names no job."""
    if since is None:
        return None
    errors = errors_text(NodeFailureFact.from_json(name, holding) for holding in (why or {}).get("causes", ()))
    listed = f" ({errors})" if errors else ""
    words = (
        f"is quarantined since {at_text(since)}{listed}, {until_text(until)} – "
        f"`trainmaster nodes release {name}` opens it"
    )
    return words, until


def _why_not(condition: str, is_ready: bool, is_cordoned: bool, is_draining: bool) -> str:
    if not is_ready:
        return "is not ready"
    if is_draining:
        return f"is being drained ({condition.rstrip('.')})" if condition and not is_cordoned else "is being drained"
    if is_cordoned:
        return "is cordoned"
    return f"takes no new work ({condition.rstrip('.')})" if condition else ""
