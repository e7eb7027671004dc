"""Requests of the ranks and responses of the coordinator, as values and as JSON."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Tuple

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
