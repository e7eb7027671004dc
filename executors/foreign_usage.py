"""What others hold on a node, where a driver must tell device by device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from core.domain.sharing.resources import Amounts
from executors.base import NodeInfo


@dataclass(frozen=True, slots=True)
class Held:
    """Of one replica. ``gpus``: ids, present or former ones."""

    cpu_milli: int
    memory_bytes: int
    gpus: frozenset[str]


def subtract_usage(node: NodeInfo, held: Iterable[Held]) -> NodeInfo:
    """``node`` as if what is ``held`` were not there: neither the amounts nor the devices."""
    all_held = tuple(held)
    if not all_held:
        return node
    ids = frozenset[str]().union(*(one.gpus for one in all_held))
    whole = node.allocatable
    counts = dict(whole.gpus)
    left = []
    for gpu in node.gpus:
        if ids.isdisjoint((gpu.id, *gpu.formerly)):
            left.append(gpu)
        else:
            counts[gpu.model] = max(0, counts.get(gpu.model, 0) - 1)
    cpu_milli = max(0, whole.cpu_milli - sum(one.cpu_milli for one in all_held))
    memory_bytes = max(0, whole.memory_bytes - sum(one.memory_bytes for one in all_held))
    return replace(node, allocatable=Amounts(cpu_milli, memory_bytes, counts), gpus=tuple(left))
