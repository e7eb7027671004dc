"""Which GPUs there are now, without asking the driver at every look at the machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

from executors.base import Gpu
from executors.process.machine import find_gpus

_FRESH_S: Final = 30.0


def _visible_gpus() -> tuple[Gpu, ...]:
    return find_gpus(visible=os.environ.get("CUDA_VISIBLE_DEVICES"))


class GpuLook:
    """Calling it gives the GPUs; ``find`` is asked again when its last answer is older than half a minute."""

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
