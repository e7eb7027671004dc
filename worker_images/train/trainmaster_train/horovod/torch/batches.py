"""Operations that were started together on torch tensors, and are waited for: on the CPU, on a GPU."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import lru_cache
from typing import Any, Callable, List, Sequence

import torch

Works = List[Any]
_QUERY_S = 0.0001
# No time at all is to torch a wait without end.
_AT_ONCE_S = 0.001


class CpuBatch:
    def __init__(self, works: Works, finish: Callable[[], None]) -> None:
        self._works = works
        self.finish = finish

    def is_done(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def wait(self, timeout_s: float) -> bool:
        for work in self._works:
            try:
                work.wait(_patience(timeout_s))
            except RuntimeError:
                if not work.is_completed():
                    return False
                work.wait()  # raises what really happened
        return True


@lru_cache(maxsize=None)  # of the engine's few durations
def _patience(timeout_s: float) -> timedelta:
    return timedelta(seconds=max(timeout_s, _AT_ONCE_S))


class CudaBatch:
    """Its results are put in place on the device's own time; ``done`` is when they are."""

    def __init__(self, works: Works, done: torch.cuda.Event, outputs: Sequence[torch.Tensor]) -> None:
        self._works = works
        self._done = done
        self._outputs = outputs
        self._pause = threading.Event()

    def is_done(self) -> bool:
        return bool(self._done.query())

    def wait(self, timeout_s: float) -> bool:
        # Not by the event's own wait: a peer that died would never let it return.
        for _ in range(max(1, int(timeout_s / _QUERY_S))):
            if self._done.query():
                return True
            self._pause.wait(_QUERY_S)
        return bool(self._done.query())

    def finish(self) -> None:
        for output in self._outputs:
            output.record_stream(torch.cuda.current_stream(output.device))
