"""What nodes are called and what is held on them: one rule for the planner and for the pages that show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from sqlalchemy import ColumnElement, Table, and_, select

from core.db.tables import Attempt, Node, Replica
from core.domain.jobs.states import AttemptState, ReplicaState
from core.domain.sharing.gpu_sharing import WHOLE
from core.domain.sharing.resources import Amounts, as_gpus

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
    """What the rows (node, cpu_milli, memory_bytes, gpus, gpu_model, gpu_milli) hold, by node.

    ``gpus`` counts the devices that are given whole and those that are given in parts; ``shares`` is what is left of the
    latter.
    """
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    whole: defaultdict[str, dict[str, int]] = defaultdict(dict)
    parts: defaultdict[str, dict[tuple[str, str], int]] = defaultdict(dict)
    for row in holders:
        total = sums[row.node]
        total[0] += row.cpu_milli
        total[1] += row.memory_bytes
        if row.gpu_model is None:
            continue
        if row.gpu_milli:
            add_part(parts[row.node], row.gpu_model, row.gpus, row.gpu_milli)
        else:
            whole[row.node][row.gpu_model] = whole[row.node].get(row.gpu_model, 0) + len(row.gpus)
    return {node: taken(cpu, memory, whole[node], parts[node]) for node, (cpu, memory) in sums.items()}


def add_part(parts: dict[tuple[str, str], int], model: str, gpus: Iterable[str], gpu_milli: int) -> None:
    """Count a part of the device ``gpus`` (one) in ``parts``: (model, device) -> thousandths taken."""
    for gpu in gpus:
        parts[model, gpu] = parts.get((model, gpu), 0) + gpu_milli


def taken(cpu_milli: int, memory_bytes: int, whole: Mapping[str, int], parts: Mapping[tuple[str, str], int]) -> Amounts:
    """What is not free any more: ``whole`` devices by model, and devices of which ``parts`` are taken."""
    gpus = dict(whole)
    left: dict[str, list[int]] = {}
    for (model, _), milli in parts.items():
        gpus[model] = gpus.get(model, 0) + 1
        left.setdefault(model, []).append(max(0, WHOLE - milli))
    return Amounts(cpu_milli, memory_bytes, gpus, {model: tuple(sorted(each)) for model, each in left.items()})


def used_gpus(used: Amounts) -> dict[str, int | float]:
    """GPUs of each model that are used, for people: a part of a device counts as much as it is."""
    unused = {model: sum(each) for model, each in used.shares.items()}
    return {model: as_gpus(WHOLE * count - unused.get(model, 0)) for model, count in used.gpus.items()}
