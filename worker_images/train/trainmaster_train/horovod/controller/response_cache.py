"""Response cache: operations that repeat in a cycle skip the negotiation with rank 0.

Negotiating a blocking allreduce costs two messages, which is much compared with reducing a megabyte. Scripts repeat
their operations: the same one, or the same few in turn. Rank 0 detects such a *cycle* and announces it to all ranks.
From then on each rank starts the next operation of the cycle without negotiation, on the *fast path*: a process group
of its own, whose operations have no other order than that of the cycle. All other operations are negotiated as before,
and may be mixed with those of the cycle in any way.

Why this is safe:

- Rank 0 announces a cycle in the response to an operation on which every rank blocks while its fast path is idle, and
  no rank starts anything there before it has that response. So all ranks begin the cycle at the same position, with
  the same count of operations.
- An allreduce ends on no rank before all ranks have started it.
- A rank that waits on the fast path for long reports that to rank 0 (:meth:`FastPath.report_slow`). Rank 0 knows the
  progress of all ranks, and which of them requested the same operation the ordinary way, joined, left, or requested
  something else. Ranks of the first two kinds are instructed to start it on the fast path, too; otherwise the
  operation is rejected for all. Then the cycle ends; after a rejection the cache stays off.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple

from trainmaster_train.horovod.controller.messages import (
    ADASUM,
    ALLREDUCE,
    GLOBAL_SET,
    UNNAMED,
    CollectiveRequest,
    Handle,
)

# How often a cycle must repeat before it is announced, and how many operations it has at most.
_REPEATS = 3
_LONGEST_CYCLE = 16
_NOT_RUNNING: Tuple[int, Optional[Handle]] = (0, None)


class ResponseCache:
    """Rank 0's part: finds the cycle in the operations on which all ranks block."""

    def __init__(self) -> None:
        self._history: List[CollectiveRequest] = []
        self._fast_path_count = 0

    def observe(self, request: CollectiveRequest, fast_path_count: int) -> Tuple[CollectiveRequest, ...]:
        """The cycle that follows ``request``; empty while none is detected.

        Args:
            fast_path_count: operations that the fast path has had. A change discards the history, because operations
                on the fast path are not observed here.
        """
        if fast_path_count != self._fast_path_count:
            self._fast_path_count = fast_path_count
            self._history.clear()
        history = self._history
        history.append(_without_number(request))
        for length in range(1, min(_LONGEST_CYCLE, len(history) // _REPEATS) + 1):
            if history[length - length * _REPEATS :] == history[-length * _REPEATS : -length]:
                cycle = tuple(history[-length:])
                history.clear()
                return cycle
        del history[: -_LONGEST_CYCLE * _REPEATS]
        return ()


class PendingOperation(NamedTuple):
    """Operation ``number`` of the fast path: started without negotiation, and not finished yet."""

    number: int
    request: CollectiveRequest


class FastPath:
    """One rank's fast path. Guarded by the engine's lock.

    ``started``: operations that this rank has started on it; ``ended``: operations that are finished, counted from the
    first. ``expected``: the next operation of the cycle, without the number of an unnamed one; ``None``: no cycle.
    """

    def __init__(self) -> None:
        self.started = 0
        self.ended = 0
        self.expected: Optional[CollectiveRequest] = None
        self._slow: List[PendingOperation] = []
        self._cycle: Tuple[CollectiveRequest, ...] = ()
        self._next = 0
        self._running: Dict[str, Tuple[int, Handle]] = {}

    def set_cycle(self, cycle: Tuple[CollectiveRequest, ...]) -> None:
        self._cycle, self._next = cycle, 0
        self.expected = cycle[0] if cycle else None

    def is_next(self, request: CollectiveRequest) -> bool:
        return _without_number(request) == self.expected

    def begin(self, handle: Handle) -> None:
        """Note that the expected operation was started, as ``handle``."""
        self._running[handle.request.name] = (self.started, handle)
        self.started += 1
        self._next = (self._next + 1) % len(self._cycle)
        self.expected = self._cycle[self._next]

    def end(self, handle: Handle, *, is_done: bool) -> None:
        """Remove an operation that is no longer waited for. Does nothing if it is not on the fast path."""
        number, running = self._running.get(handle.request.name, _NOT_RUNNING)
        if running is handle:
            del self._running[handle.request.name]
            if is_done:
                self.ended = max(self.ended, number + 1)

    @property
    def running(self) -> Dict[str, Handle]:
        """By name: the operations on the fast path that this rank waits for."""
        return {name: handle for name, (_, handle) in self._running.items()}

    def has(self, request: CollectiveRequest) -> bool:
        return request.process_set == GLOBAL_SET and request.name in self._running

    def report_slow(self, handle: Handle) -> bool:
        """Report an operation that takes long to rank 0; ``False`` if it is not on the fast path."""
        number, running = self._running.get(handle.request.name, _NOT_RUNNING)
        if running is handle:
            self._slow.append(PendingOperation(number, handle.request))
        return running is handle

    def progress(self) -> Tuple[int, int, List[PendingOperation]]:
        """``started``, ``ended``, and the slow operations that were not reported yet."""
        slow = list(self._slow)
        self._slow.clear()
        return self.started, self.ended, slow


def is_repeatable(request: CollectiveRequest) -> bool:
    """Whether it may skip negotiation: an allreduce of all ranks, which no rank finishes before all have started it."""
    return (
        request.kind == ALLREDUCE
        and request.op != ADASUM
        and request.process_set == GLOBAL_SET
        and not request.group
        and request.device == "cpu"
    )


def _without_number(request: CollectiveRequest) -> CollectiveRequest:
    """The request as it repeats: an unnamed operation has another number each time."""
    stem, mark, _ = request.name.rpartition(UNNAMED)
    return request._replace(name=stem) if mark else request
