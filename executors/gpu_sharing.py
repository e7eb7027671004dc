"""GPU sharing: the memory limit of a replica's share, which depends on the device and not on the spec alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from core.domain.sharing.gpu_sharing import WHOLE
from executors.base import Gpu, ReplicaOrder

_LIMIT: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


def with_memory_limit(order: ReplicaOrder, gpus: Iterable[Gpu]) -> ReplicaOrder:
    """``order`` with its share of the device's memory for each of its processes, as NVIDIA's Multi-Process Service
    reads it (https://docs.nvidia.com/deploy/mps/index.html#cuda-mps-pinned-device-mem-limit); as it is, where that is
    unknown, the replica has no share, or the user set the variable.

    ``gpus``: of its node, or of all nodes under the names that it knows.
    """
    milli = order.request.gpu_milli
    if not milli or _LIMIT in order.env:
        return order
    device = next((gpu for gpu in gpus if gpu.id in order.gpus), None)
    if device is None or not device.memory_bytes:
        return order
    each_mib = device.memory_bytes * milli // WHOLE // max(1, len(order.process_env)) // 2**20
    # Devices are counted as the process sees them, and it sees one.
    return replace(order, env={**order.env, _LIMIT: f"0={max(1, each_mib)}M"})
