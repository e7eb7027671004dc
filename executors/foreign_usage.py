"""Resources that replicas of other databases use on a node, device by device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from core.domain.sharing.resources import Amounts
from executors.base import NodeInfo


@dataclass(frozen=True, slots=True)
class ForeignUsage:
    """Resources of one replica. ``gpus``: ids, present or former ones."""

    cpu_milli: int
    memory_bytes: int
    gpus: frozenset[str]


def subtract_usage(node: NodeInfo, usages: Iterable[ForeignUsage]) -> NodeInfo:
    """``node`` without the amounts and devices of ``usages``."""
    usages = tuple(usages)
    if not usages:
        return node
    ids = frozenset[str]().union(*(usage.gpus for usage in usages))
    whole = node.allocatable
    counts = dict(whole.gpus)
    free_gpus = []
    for gpu in node.gpus:
        if ids.isdisjoint((gpu.id, *gpu.formerly)):
            free_gpus.append(gpu)
        else:
            counts[gpu.model] = max(0, counts.get(gpu.model, 0) - 1)
    cpu_milli = max(0, whole.cpu_milli - sum(usage.cpu_milli for usage in usages))
    memory_bytes = max(0, whole.memory_bytes - sum(usage.memory_bytes for usage in usages))
    return replace(node, allocatable=Amounts(cpu_milli, memory_bytes, counts), gpus=tuple(free_gpus))
