"""GPUs that are given away in parts: which replica is on which device, by the headroom of :mod:`core.domain.sharing.gpu_sharing`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from core.domain.ids import NodeId
from core.domain.sharing.gpu_sharing import WHOLE, device_for
from core.domain.sharing.resources import Amounts

Holder = tuple[str, str, int]  # job, role, index


class SharedDevices:
    """By node and model, the shared devices: who has how much of each. Somebody unknown has what was taken before."""

    def __init__(self) -> None:
        self._devices: dict[tuple[NodeId, str], list[dict[Holder | None, int]]] = {}

    def take(self, node: NodeId, free: Amounts, model: str, part: int, holder: Holder) -> Amounts:
        """What is free once ``holder`` has a part; fewer than no GPUs if no device has room."""
        devices = self._of(node, free, model)
        at = device_for([WHOLE - sum(device.values()) for device in devices], part)
        if at is None:
            devices.append({})
            free = _with_gpus(free, model, -1)
        devices[-1 if at is None else at][holder] = part
        return self._shown(node, free, model)

    def give(self, node: NodeId, free: Amounts, model: str, holder: Holder) -> Amounts:
        """What is free once ``holder`` is gone; a device that nobody has a part of is whole again."""
        devices = self._of(node, free, model)
        device = next(device for device in devices if holder in device)
        del device[holder]
        if not device:
            devices.remove(device)
            free = _with_gpus(free, model, 1)
        return self._shown(node, free, model)

    def _of(self, node: NodeId, free: Amounts, model: str) -> list[dict[Holder | None, int]]:
        before = free.shares.get(model, ())
        return self._devices.setdefault((node, model), [{None: WHOLE - left} for left in before])

    def _shown(self, node: NodeId, free: Amounts, model: str) -> Amounts:
        left = tuple(sorted(WHOLE - sum(device.values()) for device in self._devices[node, model]))
        shares: Mapping[str, tuple[int, ...]] = {**free.shares, model: left}
        return replace(free, shares={name: parts for name, parts in shares.items() if parts})


def _with_gpus(free: Amounts, model: str, more: int) -> Amounts:
    return replace(free, gpus={**free.gpus, model: free.gpus.get(model, 0) + more})
