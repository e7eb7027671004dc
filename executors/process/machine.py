"""This machine as a node: CPUs, memory and GPUs that may be given out."""

from __future__ import annotations

import importlib
import os
import platform
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from core.domain.sharing.gpus import normal_model
from core.domain.sharing.resources import Amounts
from executors.base import Gpu, NodeInfo

_FRESH_S: Final = 30.0


def _visible_gpus() -> tuple[Gpu, ...]:
    return find_gpus(visible=os.environ.get("CUDA_VISIBLE_DEVICES"))


class GpuCache:
    """Callable that returns the GPUs; calls ``find`` again when the last answer is older than half a minute."""

    def __init__(
        self,
        find: Callable[[], tuple[Gpu, ...]] = _visible_gpus,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = find
        self._monotonic = monotonic
        self._lock = threading.Lock()  # NVML is started and ended by each look
        self._last: tuple[float, tuple[Gpu, ...]] | None = None

    def __call__(self) -> tuple[Gpu, ...]:
        with self._lock:
            now = self._monotonic()
            if self._last is None or now - self._last[0] >= _FRESH_S:
                self._last = (now, self._find())
            return self._last[1]


CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
# Left to the platform itself and the system: a twentieth of the memory, at most this.
_RESERVE_BYTES: Final = 1024 * 2**20


def node_name() -> str:
    """The host's name as a label: lower case, nothing but letters, digits and ``-``."""
    name = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-")[:63]
    return name or "localhost"


def describe_machine(gpus: tuple[Gpu, ...]) -> NodeInfo:
    """The node. Limits of the group that this process runs in count as the machine's."""
    models: dict[str, int] = {}
    for gpu in gpus:
        models[gpu.model] = models.get(gpu.model, 0) + 1
    memory = memory_bytes()
    return NodeInfo(
        name=node_name(),
        labels={"hostname": node_name(), "os": platform.system().lower(), "arch": platform.machine()},
        allocatable=Amounts(cpu_milli(), memory - min(_RESERVE_BYTES, memory // 20), models),
        gpus=gpus,
    )


def cpu_milli() -> int:
    """CPUs that this process may use, by affinity and by quota."""
    limits = [len(os.sched_getaffinity(0)) * 1000]
    for folder in _own_groups("cpu"):
        text = _read(folder / "cpu.max").split()
        if len(text) == 2 and text[0] != "max":
            limits.append(int(text[0]) * 1000 // int(text[1]))
        quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
        if quota and period and int(quota) > 0:
            limits.append(int(quota) * 1000 // int(period))
    return max(1, min(limits))


def memory_bytes() -> int:
    """Memory of the machine, or of the group that this process runs in when that is less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for folder in _own_groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name).strip()
            if text.isdigit():
                limits.append(int(text))
    return min(limits)


def find_gpus(nvml: Any = None, *, visible: str | None = None) -> tuple[Gpu, ...]:
    """NVIDIA GPUs by NVML; none when there is no driver. ``id`` is the UUID, which CUDA_VISIBLE_DEVICES takes and which
    stays the device's when another one falls off the bus or is put in.

    Args:
        nvml: the ``pynvml`` module, or what a test puts in its place.
        visible: CUDA_VISIBLE_DEVICES of the platform itself: an admin's way to keep devices back. Indices or UUIDs.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        gpus = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                name = nvml.nvmlDeviceGetName(handle)
                memory = nvml.nvmlDeviceGetMemoryInfo(handle).total
                uuid = nvml.nvmlDeviceGetUUID(handle)
                slices = _slices(nvml, handle)
            except nvml.NVMLError:
                continue  # fallen off the bus, or not ours to use
            device_names = {str(index), _text(uuid)}
            shown = None if visible is None else set(visible.split(","))
            if slices is None:
                if shown is None or device_names & shown:
                    gpus.append(Gpu(_text(uuid), normal_model(_text(name)), int(memory), formerly=(str(index),)))
                continue
            gpus += [device for device in slices if shown is None or ({*device_names, device.id}) & shown]
        return tuple(gpus)
    except nvml.NVMLError:
        return ()
    finally:
        nvml.nvmlShutdown()


def _slices(nvml: Any, handle: Any) -> tuple[Gpu, ...] | None:
    """The MIG devices of a device, each a GPU of its own, as ``a100-sxm4-40gb-mig-1g-5gb``; ``None`` where it is not
    sliced.

    A device in MIG mode without any is none that a program could use.
    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
    """
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except (AttributeError, nvml.NVMLError):
        return None  # an older binding, or a device that cannot be sliced
    if not current:
        return None
    slices = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            name, uuid = nvml.nvmlDeviceGetName(device), nvml.nvmlDeviceGetUUID(device)
            slices.append(Gpu(_text(uuid), normal_model(_text(name)), int(nvml.nvmlDeviceGetMemoryInfo(device).total)))
        except nvml.NVMLError:
            continue  # there are fewer than could be
    return tuple(slices)


def _text(value: str | bytes) -> str:
    """NVML's names: bytes in old versions of its binding."""
    return value.decode() if isinstance(value, bytes) else value


def _own_groups(controller: str) -> Iterator[Path]:
    """Folders of this process's control group and of those above it."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            roots = [CGROUP_ROOT, CGROUP_ROOT / "unified"]
        elif controller in controllers.split(","):
            roots = [CGROUP_ROOT / controllers, CGROUP_ROOT / controller]
        else:
            continue
        for root in roots:
            folder = root / path.strip("/")
            while folder.is_relative_to(root):
                yield folder
                folder = folder.parent


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
