"""Where the time of a training step goes: data, compute, communication, parameter servers, checkpoints.

The one timer of this process::

    from trainmaster_train import steps

    timer = steps.timer()
    for batch in timer.data(loader):
        with timer.step():
            ...

A step lasts from the end of the previous step to its own end, so no time between two steps is lost. Its parts sum to it
exactly: a second that belongs to two parts is counted in the inner one, and background work during the computation is
reported apart (``overlapped``), not added. A script without ``with timer.step()`` has steps, too, if
:meth:`StepTimer.end_step` is called, as :func:`trainmaster_train.distributed.watch` and the parameter-server client do.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, Optional, TypeVar

from trainmaster_train import report

T = TypeVar("T")

DATA_WAIT = "data_wait"
COMPUTE = "compute"
COMMUNICATION = "communication"
PS_WAIT = "ps_wait"
CHECKPOINT = "checkpoint"
OTHER = "other"
PARTS = (DATA_WAIT, COMPUTE, COMMUNICATION, PS_WAIT, CHECKPOINT, OTHER)

# Often enough to watch a training, rarely enough that a million short steps give a small report.
REPORT_EVERY_S = 2.0


@dataclass(frozen=True)
class Step:
    """One step. All times in seconds.

    ``parts``: name to time; they sum to ``seconds``. ``other`` is unnamed time between two ``with timer.step()``
    blocks. ``overlapped``: work of other threads during the step, hidden behind the parts.
    ``bytes_sent``: to other processes. ``staleness``: of each push in this step, in updates of the model.
    """

    seconds: float
    parts: Mapping[str, float]
    overlapped: Mapping[str, float]
    bytes_sent: int
    staleness: List[float]


class _Frame:
    """An open part; ``inner``: seconds in it that belong to inner parts."""

    __slots__ = ("inner", "name", "started")

    def __init__(self, name: str, started: float) -> None:
        self.name = name
        self.started = started
        self.inner = 0.0


class StepTimer:
    """Measures the steps of one training thread. Other threads may call the ``add`` methods only.

    Args:
        clock: monotonic, in seconds.
        is_reported: whether means over the last seconds are sent to the platform as metrics.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, *, is_reported: bool = False) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards what other threads add
        self._at_end: List[Callable[[StepTimer], None]] = []
        self._means = _Means() if is_reported else None
        self._thread: Optional[int] = None
        self._has_blocks = False
        self._frames: List[_Frame] = []
        self._begin(None)
        self.last: Optional[Step] = None
        self.count = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """The work of one step, which ends with the block. A block in a block is part of the outer one's step."""
        if any(frame.name == COMPUTE for frame in self._frames):
            yield
            return
        self._has_blocks = True
        self._start()
        with self.part(COMPUTE):
            yield
        self._end()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block as ``name``, except inner parts. For the training thread."""
        if not self._is_training_thread():
            started = self._clock()
            try:
                yield
            finally:
                self.add(name, self._clock() - started)
            return
        frame = _Frame(_known(name), self._clock())
        self._frames.append(frame)
        try:
            yield
        finally:
            elapsed = self._clock() - frame.started
            self._frames.pop()
            self._parts[name] += max(0.0, elapsed - frame.inner)
            if self._frames:
                self._frames[-1].inner += elapsed

    def add(self, name: str, seconds: float) -> None:
        """Count the last ``seconds`` as ``name``, instead of as the enclosing part.

        From the training thread: it has just waited that long. From any other thread: background work, which is
        counted as ``overlapped``.
        """
        _known(name)
        if not self._is_training_thread():
            with self._lock:
                self._overlapped[name] = self._overlapped.get(name, 0.0) + seconds
            return
        if self._frames:
            frame = self._frames[-1]
            # Never more than has passed, so that the parts sum to the step.
            seconds = max(0.0, min(seconds, self._clock() - frame.started - frame.inner))
            frame.inner += seconds
        elif self._started is not None:
            seconds = max(0.0, min(seconds, self._clock() - self._started - sum(self._parts.values())))
        else:
            return  # before the first step
        self._parts[name] += seconds

    def claim(self, name: str, seconds: float) -> None:
        """Move up to ``seconds`` of this step's compute to ``name``: a wait inside of the computation."""
        with self._lock:
            self._claims[_known(name)] = self._claims.get(name, 0.0) + max(0.0, seconds)

    def add_overlapped(self, name: str, seconds: float) -> None:
        """Count work that overlapped with the step's parts; from any thread."""
        with self._lock:
            self._overlapped[_known(name)] = self._overlapped.get(name, 0.0) + max(0.0, seconds)

    def add_bytes_sent(self, count: int) -> None:
        """Count bytes that went to other processes; from any thread."""
        with self._lock:
            self._bytes_sent += count

    def add_staleness(self, updates: float) -> None:
        """Count one push with a staleness of ``updates``; from any thread."""
        with self._lock:
            self._staleness.append(updates)

    def data(self, batches: Iterable[T]) -> Iterator[T]:
        """``batches``, with the waiting time for each counted as ``data_wait``."""
        source = iter(batches)
        while True:
            self._start()
            with self.part(DATA_WAIT):
                try:
                    batch = next(source)
                except StopIteration:
                    return
            yield batch

    def end_step(self) -> None:
        """End a step that no block marks. The first call only starts the clock; ignored inside of a block."""
        if any(frame.name == COMPUTE for frame in self._frames):
            return
        if self._started is None:
            self._start()
        else:
            self._end()

    def at_end(self, hook: Callable[[StepTimer], None]) -> Callable[[], None]:
        """Call ``hook(timer)`` at the end of each step, before it is summed up. Returns a function that removes the
        hook.
        """
        self._at_end.append(hook)
        return lambda: self._at_end.remove(hook) if hook in self._at_end else None

    def flush(self) -> None:
        """Report the steps since the last report."""
        if self._means is not None:
            self._means.send(self.count)

    def _start(self) -> None:
        if self._started is None:
            self._thread = threading.get_ident()
            self._begin(self._clock())

    def _begin(self, started: Optional[float]) -> None:
        self._started: Optional[float] = started
        self._parts: Dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._claims: Dict[str, float] = {}
        self._overlapped: Dict[str, float] = {}
        self._bytes_sent = 0
        self._staleness: List[float] = []

    def _end(self) -> None:
        for hook in tuple(self._at_end):  # a hook may remove itself
            hook(self)
        with self._lock:
            now = self._clock()
            assert self._started is not None  # noqa: S101 (both callers have started it)
            seconds, parts = now - self._started, self._parts
            # A part that is open across the end (an end_step inside of `part`) is split there.
            for frame in self._frames:
                parts[frame.name] += max(0.0, now - frame.started - frame.inner)
                frame.started, frame.inner = now, 0.0
            parts[OTHER if self._has_blocks else COMPUTE] += max(0.0, seconds - sum(parts.values()))
            for name, claimed in self._claims.items():
                moved = min(claimed, parts[COMPUTE])
                parts[COMPUTE] -= moved
                parts[name] += moved
            self.last = Step(seconds, parts, self._overlapped, self._bytes_sent, self._staleness)
            self._begin(now)
        self.count += 1
        if self._means is not None:
            self._means.add(self.last, now, self.count)

    def _is_training_thread(self) -> bool:
        return self._thread is None or self._thread == threading.get_ident()


class _Means:
    """The means over the steps since the last report."""

    def __init__(self) -> None:
        self._since: Optional[float] = None
        self._clear(None)

    def add(self, step: Step, now: float, number: int) -> None:
        if self._since is None:
            self._since = now - step.seconds
        self._count += 1
        self._seconds += step.seconds
        self._bytes_sent += step.bytes_sent
        self._staleness += step.staleness
        for name, seconds in step.parts.items():
            self._parts[name] += seconds
        for name, seconds in step.overlapped.items():
            self._overlapped[name] = self._overlapped.get(name, 0.0) + seconds
        if now - self._since >= REPORT_EVERY_S:
            self.send(number)
            self._clear(now)

    def send(self, number: int) -> None:
        """Report the means; at step ``number`` if the script reports no steps itself."""
        if not self._count:
            return
        count = self._count
        metrics: Dict[str, float] = {"step_s": self._seconds / count, "step_bytes_sent": self._bytes_sent / count}
        metrics.update({f"step_{name}_s": seconds / count for name, seconds in self._parts.items()})
        metrics.update({f"step_{name}_overlapped_s": seconds / count for name, seconds in self._overlapped.items()})
        if self._staleness:
            metrics["staleness_mean"] = sum(self._staleness) / len(self._staleness)
            metrics["staleness_max"] = max(self._staleness)
        plain = report.plain_metrics(metrics)
        if report.has_reported_step:
            report.append({"kind": "progress", "metrics": plain})
        else:
            series = [{"name": name, "steps": [number], "values": [value]} for name, value in plain.items()]
            report.append({"kind": "metrics", "series": series})
        self._clear(None)

    def _clear(self, since: Optional[float]) -> None:
        self._since = since
        self._count: int = 0
        self._seconds: float = 0.0
        self._bytes_sent: int = 0
        self._parts: Dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._overlapped: Dict[str, float] = {}
        self._staleness: List[float] = []


_timer: Optional[StepTimer] = None


def timer() -> StepTimer:
    """The timer of this process. It reports to the platform in the first process of each replica."""
    global _timer  # noqa: PLW0603 (one for each process is the point)
    if _timer is None:
        _timer = StepTimer(is_reported=os.environ.get("LOCAL_RANK", "0") in {"", "0"})
        atexit.register(_timer.flush)
    return _timer


def _known(name: str) -> str:
    if name not in PARTS:
        raise ValueError(f"{name!r} is not a part of a step; the parts are {', '.join(PARTS)}")
    return name


def reset_after_fork() -> None:
    """Reset in a forked child: its steps are not its parent's."""
    global _timer  # noqa: PLW0603 (the same)
    _timer = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=reset_after_fork)
