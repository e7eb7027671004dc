"""Requests of the ranks and responses of the coordinator, as values and as JSON; and the operations that result:
batches that a framework's backend has started, and the engine's handles to wait for them.
"""

from __future__ import annotations

import threading
from typing import Any, List, NamedTuple, Optional, Protocol, Sequence, Tuple

ALLREDUCE = "allreduce"
ALLGATHER = "allgather"
BROADCAST = "broadcast"
ALLTOALL = "alltoall"
REDUCESCATTER = "reducescatter"
BARRIER = "barrier"
JOIN = "join"
# A new process set: all ranks agree on its members before any creates it.
ADD_SET = "add_process_set"
# All ranks agree that a process set ends, so that no rank waits in it for one that has removed it.
REMOVE_SET = "remove_process_set"

GLOBAL_SET = 0
# The fast path (response_cache.py): all ranks, too, but not a set that can be requested.
FAST_PATH = -1
ADASUM = "adasum"
# Between the kind and the number in the generated name of an unnamed operation.
UNNAMED = ".noname."


class CollectiveRequest(NamedTuple):
    """One rank is ready for one operation on one tensor.

    ``shape`` is the rank's own. ``op``: name of a reduction. ``root``: the rank that broadcasts. ``splits``: rows for
    each rank of an alltoall. ``group``/``group_size``: operations that start only together. ``device``: ``cpu``,
    ``cuda``.
    """

    name: str
    kind: str
    dtype: str = ""
    shape: Tuple[int, ...] = ()
    op: str = ""
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    splits: Tuple[int, ...] = ()
    process_set: int = GLOBAL_SET
    group: str = ""
    group_size: int = 0
    device: str = "cpu"
    item_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        count = self.item_bytes
        for extent in self.shape:
            count *= extent
        return count


class CollectiveResponse(NamedTuple):
    """The next operation of all ranks of a process set. Every rank receives the responses in the same order.

    ``names``: the tensors, several where they are fused. ``rows``: of each rank in the set's order, the first extent
    (allgather) or the splits (alltoall). ``zeros_like``: the requests, where ranks that joined take part with zeros.
    ``error``: the operation is not started and fails with this message. ``result``: the rank that joined last, or the
    number of a process set that is new or removed, or of an operation on the fast path. ``cached_cycle``: operations
    that skip the negotiation from now on.
    """

    kind: str
    process_set: int
    names: Tuple[str, ...]
    rows: Tuple[Any, ...] = ()
    zeros_like: Tuple[CollectiveRequest, ...] = ()
    error: Optional[str] = None
    result: int = -1
    cached_cycle: Tuple[CollectiveRequest, ...] = ()


def request_of(data: List[Any]) -> CollectiveRequest:
    request = CollectiveRequest(*data)
    return request._replace(shape=tuple(request.shape), splits=tuple(request.splits))


def response_of(data: List[Any]) -> CollectiveResponse:
    kind, process_set, names, rows, zeros_like, error, result, cached_cycle = data
    requests = tuple(map(request_of, zeros_like))
    return CollectiveResponse(
        kind, process_set, tuple(names), tuple(rows), requests, error, result, tuple(map(request_of, cached_cycle))
    )


class InFlightOperation(Protocol):
    """An operation that was started and will end."""

    def is_done(self) -> bool: ...

    def wait(self, timeout_s: float) -> bool:
        """Wait; returns whether it is done. Raises ``RuntimeError`` or ``OSError`` if it failed."""
        ...


class OperationBatch(InFlightOperation, Protocol):
    """Operations that were started together."""

    def finish(self) -> None:
        """Deliver the results. Called once, after the batch is done."""
        ...


class Backend(Protocol):
    # Whether it can run operations on the fast path (response_cache.py) concurrently with all others.
    has_fast_path: bool

    def start(self, response: CollectiveResponse, entries: Sequence[Any], members: Sequence[int]) -> OperationBatch:
        """Start an operation. ``entries``: the tensor entry of each name; ``None`` on a rank that joined."""
        ...

    def abort(self) -> None:
        """Make all running operations fail soon."""
        ...

    def abort_fast_path(self) -> None:
        """The same for the fast path alone."""
        ...

    def close(self) -> None: ...


class Handle:
    """One submitted operation; :meth:`Engine.wait` gives its result."""

    __slots__ = ("batch", "entry", "error", "request", "result", "submitted_s")

    def __init__(self, request: CollectiveRequest, entry: Any, submitted_s: float) -> None:
        self.request = request
        self.entry = entry
        self.submitted_s = submitted_s
        self.batch: Optional[InFlightOperation] = None
        self.error: Optional[str] = None
        self.result = -1

    @property
    def is_answered(self) -> bool:
        return self.batch is not None or self.error is not None


class StartedBatch:
    """A batch that the first waiting thread finishes."""

    __slots__ = ("_batch", "_is_finished", "_lock")

    def __init__(self, batch: OperationBatch) -> None:
        self._batch = batch
        self._lock = threading.Lock()
        self._is_finished = False

    def is_done(self) -> bool:
        return self._is_finished or self._batch.is_done()

    def wait(self, timeout_s: float) -> bool:
        if not self._is_finished and not self._batch.wait(timeout_s):
            return False
        with self._lock:
            if not self._is_finished:
                self._batch.finish()
                self._is_finished = True
        return True
