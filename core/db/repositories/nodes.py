"""Node labels and the resources in use on nodes: one rule for the planner and for the pages that show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from sqlalchemy import ColumnElement, Table, and_, select

from core.db.tables import Attempt, Node, Replica
from core.domain.jobs.states import AttemptState, ReplicaState
from core.domain.sharing.gpus import WHOLE_GPU
from core.domain.sharing.resources import Amounts, as_gpus

# Core tables instead of ORM classes: both kinds of statement can use them.
_attempts, _replicas = cast("Table", Attempt.__table__), cast("Table", Replica.__table__)
_LIVE: Final = tuple(state.value for state in AttemptState if state.is_live)


def labels_of(node: Node) -> dict[str, str]:
    """The labels that node selectors match: reported by the executor, overlaid by the admin's."""
    return merged_labels(node.labels, node.admin_labels)


def merged_labels(reported: Mapping[str, Any], by_admin: Mapping[str, Any]) -> dict[str, str]:
    """The same from the two columns."""
    return {key: str(value) for key, value in {**reported, **by_admin}.items()}


def is_live() -> ColumnElement[bool]:
    """Attempts that have not ended. Compares the state, which has an index; only few attempts are live."""
    return _attempts.c.state.in_(_LIVE)


def is_holding() -> ColumnElement[bool]:
    """Replicas whose resources are in use: all of a live attempt except those that succeeded.

    A replica that was stopped, lost or never created may still exist somewhere: its resources are free when the
    executor has
    confirmed that nothing of the attempt is left. A failed one may be restarted in place. Only replicas removed from an
    elastic gang have given their resources back: such a row holds no memory, which every other row does.
    """
    live = select(_attempts.c.id).where(is_live())
    return and_(
        _replicas.c.attempt_id.in_(live),
        _replicas.c.state != ReplicaState.SUCCEEDED.value,
        _replicas.c.memory_bytes > 0,
    )


def usage(holders: Iterable[Any]) -> dict[str, Amounts]:
    """Resources in use by node, from rows (node, cpu_milli, memory_bytes, gpus, gpu_model, gpu_milli).

    ``gpus`` counts devices in use, whole or shared; ``shares`` is the remainder of each shared device.
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
    """Add a fraction of the device ``gpus`` (one) to ``parts``: (model, device) -> thousandths in use."""
    for gpu in gpus:
        parts[model, gpu] = parts.get((model, gpu), 0) + gpu_milli


def taken(cpu_milli: int, memory_bytes: int, whole: Mapping[str, int], parts: Mapping[tuple[str, str], int]) -> Amounts:
    """Resources in use: ``whole`` devices by model, and shared devices with ``parts`` in use."""
    gpus = dict(whole)
    left: dict[str, list[int]] = {}
    for (model, _), milli in parts.items():
        gpus[model] = gpus.get(model, 0) + 1
        left.setdefault(model, []).append(max(0, WHOLE_GPU - milli))
    return Amounts(cpu_milli, memory_bytes, gpus, {model: tuple(sorted(each)) for model, each in left.items()})


def used_gpus(used: Amounts) -> dict[str, int | float]:
    """GPUs in use by model, for display; a fraction of a device counts as that fraction."""
    unused = {model: sum(each) for model, each in used.shares.items()}
    return {model: as_gpus(WHOLE_GPU * count - unused.get(model, 0)) for model, count in used.gpus.items()}
