"""Samples a replica's usage: CPU, memory, disk, network, GPUs; by its control group where it has one, else by /proc."""

from __future__ import annotations

import os

from trainmaster_runtime.limits import cgroups
from trainmaster_runtime.metrics.nvml import NvmlSampler
from trainmaster_runtime.process import procfs

_TICK = os.sysconf("SC_CLK_TCK")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional


class Sampler:
    """Args:

    groups: control groups that hold the replica alone, by controller; empty: there are none.
    visible_gpus: as CUDA_VISIBLE_DEVICES has it; ``None``: all.
    """

    def __init__(self, groups: Dict[str, str], visible_gpus: Optional[str]) -> None:
        self._groups = groups
        self._gpus = NvmlSampler(visible_gpus)
        self._before: Dict[str, float] = {}
        self._before_at = 0.0

    def sample(self, now: float) -> Dict[str, float]:
        """Values by name. Rates are means since the sample before, so the first has none. ``now`` is monotonic."""
        pids = procfs.descendants(os.getpid())
        found: Dict[str, float] = {"memory_bytes": self._memory(pids)}
        counts = {
            "cpu_percent": self._cpu_seconds(pids) * 100,
            **_disk_bytes(pids),
            **_network_bytes(),
        }
        elapsed = now - self._before_at
        if self._before and elapsed > 0:
            for name, count in counts.items():
                # A process that ended took what it had counted with it.
                found[name] = max(0.0, count - self._before.get(name, count)) / elapsed
        self._before, self._before_at = counts, now
        found.update(self._gpus.sample())
        return found

    def close(self) -> None:
        self._gpus.close()

    def _memory(self, pids: List[int]) -> float:
        for controller, name in (("memory", "memory.current"), ("unified", "memory.current")):
            used = _number(self._groups.get(controller, ""), name)
            if used is not None:
                return used - (_field(self._groups[controller], "memory.stat", "inactive_file") or 0.0)
        used = _number(self._groups.get("memory", ""), "memory.usage_in_bytes")
        if used is not None:
            return used - (_field(self._groups["memory"], "memory.stat", "total_inactive_file") or 0.0)
        return float(sum(procfs.memory_bytes(pid) for pid in pids))

    def _cpu_seconds(self, pids: List[int]) -> float:
        for controller in ("cpu", "unified"):
            used = _field(self._groups.get(controller, ""), "cpu.stat", "usage_usec")
            if used is not None:
                return used / 1e6
        for controller in ("cpuacct", "cpu"):
            used = _number(self._groups.get(controller, ""), "cpuacct.usage")
            if used is not None:
                return used / 1e9
        return sum(procfs.cpu_ticks(pid) for pid in pids) / _TICK


def groups_of(view: str, own: Dict[str, str]) -> Dict[str, str]:
    """Groups that hold the replica alone: ``own`` if it has some, the container's in a container."""
    if own or view != "as_is":
        return own
    return cgroups.own_groups()


def _disk_bytes(pids: List[int]) -> Dict[str, float]:
    read = written = 0.0
    for pid in pids:
        for line in procfs.io_lines(pid):
            if line.startswith(b"read_bytes:"):
                read += float(line.split()[1])
            elif line.startswith(b"write_bytes:"):
                written += float(line.split()[1])
    return {"disk_read_bytes_s": read, "disk_written_bytes_s": written}


def _network_bytes() -> Dict[str, float]:
    """Bytes of this network namespace: the replica's own in a container, the machine's for plain processes."""
    received = sent = 0.0
    for line in procfs.network_lines():
        name, _, rest = line.partition(b":")
        fields = rest.split()
        if len(fields) >= 9 and name.strip() != b"lo":
            received += float(fields[0])
            sent += float(fields[8])
    return {"network_received_bytes_s": received, "network_sent_bytes_s": sent}


def _number(folder: str, name: str) -> Optional[float]:
    text = _text(folder, name).strip()
    return float(text) if text.isdigit() else None


def _field(folder: str, name: str, field: str) -> Optional[float]:
    for line in _text(folder, name).splitlines():
        key, _, value = line.partition(" ")
        if key == field and value.strip().isdigit():
            return float(value)
    return None


def _text(folder: str, name: str) -> str:
    if not folder:
        return ""
    try:
        with open(folder + "/" + name) as stream:
            return stream.read(65_536)
    except OSError:
        return ""
