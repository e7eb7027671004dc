"""What is left of a node beside replicas of other databases, and of a device for a replica that has a share of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from core.domain.sharing.gpus import WHOLE_GPU
from core.domain.sharing.resources import Amounts
from executors.base import Gpu, NodeInfo, ReplicaOrder

_MEMORY_LIMIT: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


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
    allocatable = node.allocatable
    counts = dict(allocatable.gpus)
    free_gpus = []
    for gpu in node.gpus:
        if ids.isdisjoint((gpu.id, *gpu.formerly)):
            free_gpus.append(gpu)
        else:
            counts[gpu.model] = max(0, counts.get(gpu.model, 0) - 1)
    cpu_milli = max(0, allocatable.cpu_milli - sum(usage.cpu_milli for usage in usages))
    memory_bytes = max(0, allocatable.memory_bytes - sum(usage.memory_bytes for usage in usages))
    return replace(node, allocatable=Amounts(cpu_milli, memory_bytes, counts), gpus=tuple(free_gpus))


def with_memory_limit(order: ReplicaOrder, gpus: Iterable[Gpu]) -> ReplicaOrder:
    """``order`` with its share of the device's memory for each of its processes, as NVIDIA's Multi-Process Service
    reads it (https://docs.nvidia.com/deploy/mps/index.html#cuda-mps-pinned-device-mem-limit); as it is, where that is
    unknown, the replica has no share, or the user set the variable.

    ``gpus``: of its node, or of all nodes under the names that it knows.
    """
    milli = order.request.gpu_milli
    if not milli or _MEMORY_LIMIT in order.env:
        return order
    device = next((gpu for gpu in gpus if gpu.id in order.gpus), None)
    if device is None or not device.memory_bytes:
        return order
    each_mib = device.memory_bytes * milli // WHOLE_GPU // max(1, len(order.process_env)) // 2**20
    # Devices are counted as the process sees them, and it sees one.
    return replace(order, env={**order.env, _MEMORY_LIMIT: f"0={max(1, each_mib)}M"})
