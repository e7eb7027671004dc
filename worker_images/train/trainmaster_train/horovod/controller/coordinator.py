"""Rank 0's coordinator: it collects the requests of all ranks and decides on one order of operations.

Collective operations work only if all ranks start the same ones in the same order, but ranks become ready in any order
(gradients, above all). So no operation starts before every rank of its process set has requested it by its name. The
simple equivalent: wait until all ranks named a tensor, then have all of them reduce it. In addition, tensors that are
ready together are fused into one operation (tensor fusion), and ranks that joined count as ready for everything.

Pure: no socket, no clock; times are arguments.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Deque, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from trainmaster_train.horovod.controller.messages import (
    ADASUM,
    ADD_SET,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    FAST_PATH,
    GLOBAL_SET,
    JOIN,
    REMOVE_SET,
    CollectiveRequest,
    CollectiveResponse,
)
from trainmaster_train.horovod.controller.response_cache import PendingOperation, ResponseCache, is_repeatable

# A tensor of this size fills the wire by itself: copying it into a fusion buffer would only cost.
UNFUSED_BYTES = 4 * 1024 * 1024
# Operations in which ranks that joined can take part without data of their own.
_JOINABLE = (ALLREDUCE, ALLGATHER)

Key = Tuple[int, str]


class Stall(NamedTuple):
    """An operation that some ranks wait for and others have not requested."""

    request: CollectiveRequest
    ready: Tuple[int, ...]
    missing: Tuple[int, ...]
    waited_s: float

    def sentence(self) -> str:
        return (
            f"{self.request.kind} {self.request.name!r} has waited {self.waited_s:.0f} s: {ranks(self.ready)} asked "
            f"for it, {ranks(self.missing)} did not"
        )


@dataclass
class _Pending:
    since_s: float
    by_rank: Dict[int, CollectiveRequest] = field(default_factory=dict)
    blocking: Set[int] = field(default_factory=set)


class _FastPathWait(NamedTuple):
    """An operation on the fast path that ``rank`` waits for."""

    since_s: float
    rank: int
    request: CollectiveRequest


class Coordinator:
    """For ``size`` ranks. Feed it with :meth:`take`; call :meth:`next_response` until there is none.

    ``has_fast_path``: repeating operations may skip the negotiation.
    """

    def __init__(self, size: int, *, fusion_bytes: int, has_fast_path: bool = False) -> None:
        self._fusion_bytes = fusion_bytes
        all_ranks = tuple(range(size))
        self._members: Dict[int, Tuple[int, ...]] = {GLOBAL_SET: all_ranks, FAST_PATH: all_ranks}
        self._set_count = 1
        self._removed: Set[int] = set()
        self._pending: Dict[Key, _Pending] = {}
        self._ready: Deque[Tuple[CollectiveResponse, Optional[CollectiveRequest]]] = deque()
        self._groups: Dict[Key, List[Tuple[CollectiveResponse, CollectiveRequest]]] = {}
        self._joined: Set[int] = set()
        self._last_joined = -1
        self._departed: Set[int] = set()
        self._cache = ResponseCache() if has_fast_path and size > 1 else None
        self._started = dict.fromkeys(all_ranks, 0)  # operations started on the fast path, by rank
        self._ended = 0
        self._fast_path_waits: Dict[int, _FastPathWait] = {}

    def members(self, process_set: int) -> Tuple[int, ...]:
        return self._members.get(process_set, ())

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def take(
        self, rank: int, requests: Iterable[CollectiveRequest], now_s: float, *, blocking: Sequence[str] = ()
    ) -> None:
        """Note that ``rank`` is ready for ``requests``.

        Args:
            blocking: names of the requests on which the rank blocks while its fast path is idle.
        """
        for request in requests:
            if request.kind == JOIN:
                self._join(rank)
                continue
            key = (request.process_set, request.name)
            pending = self._pending.get(key)
            if pending is None:
                pending = self._pending[key] = _Pending(now_s)
            pending.by_rank[rank] = request
            if request.name in blocking:
                pending.blocking.add(rank)
            self._check_readiness(key)
        self._check_fast_path()

    def take_fast_path(
        self, rank: int, started: int, ended: int, slow: Iterable[PendingOperation], now_s: float
    ) -> None:
        """Note the progress of ``rank`` on the fast path, and the slow operations there."""
        self._started[rank] = max(self._started[rank], started)
        self._ended = max(self._ended, ended)
        for number, request in slow:
            # A report that arrives after the end of its operation, or of the fast path, is outdated.
            if number >= self._ended and self._cache is not None:
                self._fast_path_waits.setdefault(number, _FastPathWait(now_s, rank, request))
        self._check_fast_path()

    def leave(self, rank: int) -> None:
        """``rank`` left in good order: operations that need it fail, now and later."""
        self._departed.add(rank)
        for key in list(self._pending):
            self._check_readiness(key)
        self._check_fast_path()

    def next_response(self) -> Optional[CollectiveResponse]:
        """The next operation, or ``None`` when none is ready."""
        if not self._ready:
            return None
        response, request = self._ready.popleft()
        if request is None or not self._is_fusable(request):
            return response
        return self._fuse(response, request)

    def stalls(self, now_s: float) -> List[Stall]:
        """Operations that some ranks wait for, the longest wait first."""
        stalls = []
        for (process_set, _), pending in self._pending.items():
            members = self._members.get(process_set, ())
            missing = tuple(r for r in members if r not in pending.by_rank and r not in self._joined)
            request = next(iter(pending.by_rank.values()))
            stalls.append(Stall(request, tuple(sorted(pending.by_rank)), missing, now_s - pending.since_s))
        for number, waiting in self._fast_path_waits.items():
            missing = tuple(rank for rank, started in self._started.items() if started <= number)
            ready = tuple(rank for rank in self._started if rank not in missing)
            stalls.append(Stall(waiting.request, ready, missing, now_s - waiting.since_s))
        return sorted(stalls, key=lambda stall: -stall.waited_s)

    # Readiness

    def _join(self, rank: int) -> None:
        self._joined.add(rank)
        self._last_joined = rank
        if self._joined.issuperset(self._members[GLOBAL_SET]):
            self._joined.clear()
            self._ready.append((CollectiveResponse(JOIN, GLOBAL_SET, ("join",), result=self._last_joined), None))
        for key in list(self._pending):
            self._check_readiness(key)

    def _check_readiness(self, key: Key) -> None:
        process_set, name = key
        pending = self._pending[key]
        members = self._members.get(process_set)
        first = next(iter(pending.by_rank.values()))
        if members is None or process_set in self._removed:
            self._reject(key, f"{first.kind} {name!r}: process set {process_set} was removed")
            return
        absent = [r for r in members if r not in pending.by_rank]
        departed = [r for r in absent if r in self._departed]
        if departed:
            self._reject(key, _departure_reason(departed, first))
            return
        joined = [r for r in absent if r in self._joined]
        if len(joined) < len(absent):
            return
        # Zeros in an Adasum would halve the result.
        if joined and (first.kind not in _JOINABLE or first.op == ADASUM):
            operation = f"{ADASUM} {first.kind}" if first.op == ADASUM else first.kind
            self._reject(key, f"{ranks(joined)} called hvd.join() and cannot take part in {operation} {name!r}")
            return
        self._negotiate(key, pending, members, is_joined=bool(joined))

    def _negotiate(self, key: Key, pending: _Pending, members: Sequence[int], *, is_joined: bool) -> None:
        """All ranks are ready: queue the operation, or an error if their requests differ."""
        process_set, name = key
        rank, first = next(iter(pending.by_rank.items()))
        for other, request in pending.by_rank.items():
            if request != first and (problem := _disagreement(first, request)) is not None:
                self._reject(
                    key, f"{first.kind} {name!r} differs: rank {rank} has {problem[0]}, rank {other} {problem[1]}"
                )
                return
        if first.kind == ADD_SET:
            self._members[self._set_count] = first.shape
            self._queue(key, CollectiveResponse(ADD_SET, process_set, (name,), result=self._set_count), first)
            self._set_count += 1
            return
        if first.kind == REMOVE_SET:
            self._remove_set(key, first)
            return
        rows: Tuple[object, ...] = ()
        if first.kind == ALLGATHER:
            rows = tuple(pending.by_rank[r].shape[0] if r in pending.by_rank else 0 for r in members)
        elif first.kind == ALLTOALL:
            rows = tuple(pending.by_rank[r].splits for r in members)
        zeros_like = (first,) if is_joined else ()
        cached_cycle: Tuple[CollectiveRequest, ...] = ()
        if self._cache is not None and pending.blocking.issuperset(members) and is_repeatable(first):
            cached_cycle = self._cache.observe(first, self._started[0])
        self._queue(
            key,
            CollectiveResponse(
                first.kind, process_set, (name,), rows=rows, zeros_like=zeros_like, cached_cycle=cached_cycle
            ),
            first,
        )

    def _remove_set(self, key: Key, request: CollectiveRequest) -> None:
        """No rank will request anything in the set any more: operations that wait there fail."""
        (number,) = request.shape
        self._removed.add(number)
        for other in [other for other in self._pending if other[0] == number]:
            self._check_readiness(other)
        self._queue(key, CollectiveResponse(REMOVE_SET, GLOBAL_SET, (request.name,), result=number), request)

    def _queue(self, key: Key, response: CollectiveResponse, request: CollectiveRequest) -> None:
        del self._pending[key]
        if not request.group:
            # A response that announces a cycle is not fused.
            self._ready.append((response, None if response.cached_cycle else request))
            return
        group = (request.process_set, request.group)
        waiting = self._groups.setdefault(group, [])
        waiting.append((response, request))
        if len(waiting) >= request.group_size:
            self._ready.extend(self._groups.pop(group))

    def _reject(self, key: Key, why: str) -> None:
        pending = self._pending.pop(key)
        process_set, name = key
        kind = next(iter(pending.by_rank.values())).kind
        self._ready.append((CollectiveResponse(kind, process_set, (name,), error=f"{why}."), None))

    # Fast path

    def _check_fast_path(self) -> None:
        for number in sorted(self._fast_path_waits):
            if number < self._ended or min(self._started.values()) > number:
                del self._fast_path_waits[number]
            else:
                self._check_fast_path_wait(number)

    def _check_fast_path_wait(self, number: int) -> None:
        """A rank waits for an operation on the fast path: have all other ranks start it, if they can."""
        waiting = self._fast_path_waits[number]
        key = (GLOBAL_SET, waiting.request.name)
        pending = self._pending.get(key)
        requests = {} if pending is None else pending.by_rank
        absent = [rank for rank, started in self._started.items() if started <= number]
        kind, name = waiting.request.kind, waiting.request.name
        departed = [rank for rank in absent if rank in self._departed]
        differing = [
            f"{kind} {name!r} differs: rank {waiting.rank} has {problem[0]}, rank {rank} {problem[1]}"
            for rank, request in requests.items()
            if (problem := _disagreement(waiting.request, request)) is not None
        ]
        if departed or differing:
            why = differing[0] if differing else _departure_reason(departed, waiting.request)
            self._pending.pop(key, None)
            self._fast_path_waits.clear()
            self._cache = None  # a rank that waits on the fast path cannot be called back: the path is closed
            self._ready.append((CollectiveResponse(kind, FAST_PATH, (name,), error=f"{why}."), None))
            return
        is_first = min(self._started.values()) == number
        if not is_first or any(rank not in requests and rank not in self._joined for rank in absent):
            return
        self._pending.pop(key, None)
        del self._fast_path_waits[number]
        self._started.update(dict.fromkeys(absent, number + 1))
        zeros_like = () if len(requests) == len(absent) else (waiting.request,)
        self._ready.append((CollectiveResponse(kind, FAST_PATH, (name,), zeros_like=zeros_like, result=number), None))

    # Fusion

    def _is_fusable(self, request: CollectiveRequest) -> bool:
        return (
            request.kind == ALLREDUCE
            and request.op != ADASUM
            and request.size_bytes < min(UNFUSED_BYTES, self._fusion_bytes)
        )

    def _fuse(self, response: CollectiveResponse, request: CollectiveRequest) -> CollectiveResponse:
        """``response`` fused with other ready ones that fit its buffer. The order of the rest stays."""
        names, zeros_like = [response.names[0]], list(response.zeros_like)
        remaining: Deque[Tuple[CollectiveResponse, Optional[CollectiveRequest]]] = deque()
        total = request.size_bytes
        while self._ready:
            other, other_request = self._ready.popleft()
            if (
                other_request is not None
                and other.error is None
                and _fusion_key(other_request) == _fusion_key(request)
                and bool(other.zeros_like) == bool(response.zeros_like)
                and self._is_fusable(other_request)
                and total + other_request.size_bytes <= self._fusion_bytes
            ):
                names.append(other.names[0])
                zeros_like.extend(other.zeros_like)
                total += other_request.size_bytes
            else:
                remaining.append((other, other_request))
        self._ready = remaining
        return response._replace(names=tuple(names), zeros_like=tuple(zeros_like))


def ranks(numbers: Sequence[int]) -> str:
    """``rank 3`` or ``ranks 1, 2, 5``, for a message; of many only the first ones."""
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"rank {shown}" if len(numbers) == 1 else f"ranks {shown}"


def _departure_reason(departed: Sequence[int], request: CollectiveRequest) -> str:
    return f"{ranks(departed)} ended, or called hvd.shutdown(), without {request.kind} {request.name!r}"


def _fusion_key(request: CollectiveRequest) -> Tuple[object, ...]:
    return (
        request.kind,
        request.dtype,
        request.op,
        request.prescale,
        request.postscale,
        request.process_set,
        request.device,
    )


def _disagreement(first: CollectiveRequest, other: CollectiveRequest) -> Optional[Tuple[str, str]]:
    """The first field that differs and must not, as each of the two has it; ``None``: they match."""
    if first.kind != other.kind:
        return first.kind, other.kind
    ragged = first.kind in (ALLGATHER, ALLTOALL)
    for name in ("dtype", "device", "op", "root", "prescale", "postscale", "group_size"):
        expected, actual = getattr(first, name), getattr(other, name)
        if expected != actual:
            word = "root rank" if name == "root" else name
            return f"{word} {expected}", f"{word} {actual}"
    shape, other_shape = first.shape, other.shape
    if shape == other_shape:
        return None
    if ragged and len(shape) == len(other_shape) and shape[1:] == other_shape[1:]:
        return None
    if first.kind == BROADCAST and not first.shape and not other.shape:
        return None
    word = "ranks" if first.kind == ADD_SET else "shape"
    return f"{word} {list(shape)}", f"{word} {list(other_shape)}"
