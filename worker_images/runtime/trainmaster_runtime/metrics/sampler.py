"""Samples a replica's usage: CPU, memory, disk, network, GPUs; by its control group where it has one, else by /proc.

GPUs are sampled by NVIDIA's management library (NVML) through ctypes; without it there are none.
https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p

from trainmaster_runtime import cgroups
from trainmaster_runtime.process import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

_LIBRARY = "libnvidia-ml.so.1"
_XID_CRITICAL = 8  # nvmlEventTypeXidCriticalError
_GPUS = 64

_TICK = os.sysconf("SC_CLK_TCK")


class _Utilisation(ctypes.Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class _Event(ctypes.Structure):
    _fields_ = [
        ("device", c_void_p),
        ("type", c_ulonglong),
        ("data", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    ]


class NvmlSampler:
    """Args: ``visible``: as CUDA_VISIBLE_DEVICES has it; ``None``: all that the library shows."""

    def __init__(self, visible: Optional[str]) -> None:
        self._devices: List[Tuple[int, c_void_p]] = []
        self._events: Optional[c_void_p] = None
        self._library: Optional[ctypes.CDLL] = None
        if visible is not None and not visible.strip():
            return
        try:
            library = ctypes.CDLL(_LIBRARY)
            if library.nvmlInit_v2() != 0:
                return
        except (OSError, AttributeError):
            return
        self._library = library
        names = None if visible is None or visible == "all" else visible.split(",")
        self._devices = list(enumerate(self._handles(names)))
        self._listen()

    def __bool__(self) -> bool:
        return bool(self._devices)

    def sample(self) -> Dict[str, float]:
        """Values by name, such as ``gpu.0/utilisation_percent``; what the GPU does not tell is left out."""
        sample: Dict[str, float] = {}
        library = self._library
        if library is None:
            return sample
        for number, device in self._devices:
            prefix = "gpu.%d/" % number
            use, memory = _Utilisation(), _Memory()
            if self._call("nvmlDeviceGetUtilizationRates", device, byref(use)):
                sample[prefix + "utilisation_percent"] = float(use.gpu)
            if self._call("nvmlDeviceGetMemoryInfo", device, byref(memory)):
                sample[prefix + "memory_bytes"] = float(memory.used)
            power, degrees = c_uint(), c_uint()
            if self._call("nvmlDeviceGetPowerUsage", device, byref(power)):
                sample[prefix + "power_w"] = power.value / 1000
            if self._call("nvmlDeviceGetTemperature", device, c_int(0), byref(degrees)):
                sample[prefix + "temperature_c"] = float(degrees.value)
            for kind, name in ((0, "ecc_corrected"), (1, "ecc_uncorrected")):
                count = c_ulonglong()
                if self._call("nvmlDeviceGetTotalEccErrors", device, c_int(kind), c_int(0), byref(count)):
                    sample[prefix + name] = float(count.value)
        for number, xid in self._xids():
            sample["gpu.%d/xid" % number] = float(xid)
        return sample

    def close(self) -> None:
        if self._library is not None:
            if self._events is not None:
                self._library.nvmlEventSetFree(self._events)
            self._library.nvmlShutdown()
            self._library, self._devices = None, []

    def _handles(self, names: Optional[List[str]]) -> List[c_void_p]:
        handles = []
        if names is None:
            count = c_uint()
            self._call("nvmlDeviceGetCount_v2", byref(count))
            names = [str(number) for number in range(min(count.value, _GPUS))]
        for name in map(str.strip, names[:_GPUS]):
            handle = c_void_p()
            if name.isdigit():
                is_there = self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(int(name)), byref(handle))
            else:
                is_there = self._call("nvmlDeviceGetHandleByUUID", c_char_p(name.encode()), byref(handle))
            if is_there:
                handles.append(handle)
        return handles

    def _listen(self) -> None:
        events = c_void_p()
        if not self._devices or not self._call("nvmlEventSetCreate", byref(events)):
            return
        self._events = events
        for _, device in self._devices:
            self._call("nvmlDeviceRegisterEvents", device, c_ulonglong(_XID_CRITICAL), events)

    def _xids(self) -> List[Tuple[int, int]]:
        """(GPU, Xid) of errors since the last look: https://docs.nvidia.com/deploy/xid-errors/"""
        xids: List[Tuple[int, int]] = []
        while self._events is not None and len(xids) < 16:
            event = _Event()
            if not self._call("nvmlEventSetWait_v2", self._events, byref(event), c_uint(0)):
                break
            number = next((n for n, device in self._devices if device.value == event.device), None)
            if number is not None:
                xids.append((number, int(event.data)))
        return xids

    def _call(self, name: str, *arguments: object) -> bool:
        """Whether the function is there and went well."""
        function = getattr(self._library, name, None)
        return function is not None and function(*arguments) == 0


class Sampler:
    """Args:

    groups: control groups that hold the replica alone, by controller; empty: there are none.
    visible_gpus: as CUDA_VISIBLE_DEVICES has it; ``None``: all.
    has_own_network: in a network namespace of its own, as in a container. The counts of a plain process' namespace are
        those of the whole machine, so they are left out.
    """

    def __init__(self, groups: Dict[str, str], visible_gpus: Optional[str], *, has_own_network: bool) -> None:
        self._groups = groups
        self._has_own_network = has_own_network
        self._gpus = NvmlSampler(visible_gpus)
        self._before: Dict[str, float] = {}
        self._before_at = 0.0

    def sample(self, now: float) -> Dict[str, float]:
        """Values by name. Rates are means since the sample before, so the first has none. ``now`` is monotonic."""
        pids = procfs.descendants(os.getpid())
        sample: Dict[str, float] = {"memory_bytes": self._memory(pids)}
        counts = {
            "cpu_percent": self._cpu_seconds(pids) * 100,
            **_disk_bytes(pids),
            **(_network_bytes() if self._has_own_network else {}),
        }
        elapsed = now - self._before_at
        if self._before and elapsed > 0:
            for name, count in counts.items():
                # A process that ended took what it had counted with it.
                sample[name] = max(0.0, count - self._before.get(name, count)) / elapsed
        self._before, self._before_at = counts, now
        sample.update(self._gpus.sample())
        return sample

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
    """Bytes of all interfaces of this network namespace but the loopback."""
    received = sent = 0.0
    for line in procfs.network_lines():
        name, _, counters = line.partition(b":")
        fields = counters.split()
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
