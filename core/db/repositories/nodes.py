"""What nodes are called and what is held on them: one rule for the planner and for the pages that show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from sqlalchemy import ColumnElement, Table, and_, select

from core.db.tables import Attempt, Node, Replica
from core.domain.resources import Amounts
from core.domain.states import AttemptState, ReplicaState

# Of the tables, not of their classes: both kinds of statement may use them.
_attempts, _replicas = cast("Table", Attempt.__table__), cast("Table", Replica.__table__)
_LIVE: Final = tuple(state.value for state in AttemptState if state.is_live)


def labels_of(node: Node) -> dict[str, str]:
    """The labels that selectors meet: what the executor reports, overlaid by the admin's."""
    return merged_labels(node.labels, node.admin_labels)


def merged_labels(reported: Mapping[str, Any], by_admin: Mapping[str, Any]) -> dict[str, str]:
    """The same of the two columns."""
    return {key: str(value) for key, value in {**reported, **by_admin}.items()}


def is_live() -> ColumnElement[bool]:
    """Attempts that have not ended. Listed by state, as that has an index and only few attempts are live."""
    return _attempts.c.state.in_(_LIVE)


def is_holding() -> ColumnElement[bool]:
    """Replicas whose place is not free: all of a live attempt but those that finished by themselves.

    One that was stopped, lost or never created may still be on its way somewhere: its place is free when the executor
    has confirmed that nothing of the attempt is left. One that failed may be started again where it was. Only what an
    elastic gang goes on without has given its place back: such a row holds no memory, which every other one does.
    """
    live = select(_attempts.c.id).where(is_live())
    return and_(
        _replicas.c.attempt_id.in_(live),
        _replicas.c.state != ReplicaState.SUCCEEDED.value,
        _replicas.c.memory_bytes > 0,
    )


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
