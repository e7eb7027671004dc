"""NVML through ctypes, against a library that fills what it is handed as NVIDIA's does."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from trainmaster_runtime.metrics import sampler


class Library:
    """Two GPUs; the second tells neither power nor ECC. One Xid waits."""

    def __init__(self) -> None:
        self.xids = [(2, 79)]
        self.is_open = False

    def nvmlInit_v2(self) -> int:  # noqa: N802 (the library's name)
        self.is_open = True
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.is_open = False
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        if index.value > 1:
            return 2
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:  # noqa: N802
        if uuid.value != b"GPU-b":
            return 6
        handle._obj.value = 2
        return 0

    def nvmlDeviceGetUtilizationRates(self, device: Any, use: Any) -> int:  # noqa: N802
        use._obj.gpu = 40 + device.value
        return 0

    def nvmlDeviceGetMemoryInfo(self, device: Any, memory: Any) -> int:  # noqa: N802
        memory._obj.used = 2**34
        return 0

    def nvmlDeviceGetPowerUsage(self, device: Any, power: Any) -> int:  # noqa: N802
        power._obj.value = 250_500
        return 0 if device.value == 1 else 3

    def nvmlDeviceGetTemperature(self, device: Any, sensor: Any, degrees: Any) -> int:  # noqa: N802
        degrees._obj.value = 61
        return 0

    def nvmlDeviceGetTotalEccErrors(self, device: Any, kind: Any, counter: Any, count: Any) -> int:  # noqa: N802
        count._obj.value = 3 if kind.value == 1 else 0
        return 0 if device.value == 1 else 3

    def nvmlEventSetCreate(self, events: Any) -> int:  # noqa: N802
        events._obj.value = 7
        return 0

    def nvmlEventSetFree(self, events: Any) -> int:  # noqa: N802
        return 0

    def nvmlDeviceRegisterEvents(self, device: Any, kinds: Any, events: Any) -> int:  # noqa: N802
        return 0

    def nvmlEventSetWait_v2(self, events: Any, event: Any, timeout: Any) -> int:  # noqa: N802
        if not self.xids:
            return 10
        event._obj.device, event._obj.data = self.xids.pop()
        return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: made)
    return made


def test_all_that_a_gpu_tells_is_sampled_and_what_it_does_not_is_left_out(library: Library) -> None:
    gpus = sampler.NvmlSampler(None)
    assert gpus.sample() == {
        "gpu.0/utilisation_percent": 41.0,
        "gpu.0/memory_bytes": 2.0**34,
        "gpu.0/power_w": 250.5,
        "gpu.0/temperature_c": 61.0,
        "gpu.0/ecc_corrected": 0.0,
        "gpu.0/ecc_uncorrected": 3.0,
        "gpu.1/utilisation_percent": 42.0,
        "gpu.1/memory_bytes": 2.0**34,
        "gpu.1/temperature_c": 61.0,
        "gpu.1/xid": 79.0,
    }
    assert "gpu.1/xid" not in gpus.sample()
    gpus.close()
    assert not library.is_open


@pytest.mark.parametrize(
    ("visible", "use"), [("1", 42.0), ("GPU-b", 42.0), ("0", 41.0), ("9", None), ("GPU-x", None), ("", None)]
)
def test_only_the_replicas_own_gpus_are_looked_at(library: Library, visible: str, use: float | None) -> None:
    assert sampler.NvmlSampler(visible).sample().get("gpu.0/utilisation_percent") == use


def test_without_the_library_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> Any:
        raise OSError("no such file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    gpus = sampler.NvmlSampler(None)
    assert gpus.sample() == {}
    assert not gpus
    gpus.close()
