"""What repeats needs no asking: the order of operations that come round again and again is known before they do.

A blocking allreduce costs two messages to agree on, which is much beside a megabyte. Scripts repeat theirs, though: the
same one, or the same few in turn. Rank 0 hears that, and tells all ranks the *rhythm*: from then on, an operation that
is next in it is started unasked by each rank that comes to it, on the *lane*, a group of its own, whose operations have
no other order than the rhythm's. All else is asked for as ever, and mixes with it in any way.

Why that is safe:

- A rhythm is told in the answer to an operation that every rank waits for while it has nothing on the lane, and no rank
  starts anything there until it has that answer. So all begin it at the same place, with the same count of operations.
- An allreduce ends nowhere before all ranks have started it: as long as one has not, none has its result.
- Who waits on the lane for long tells rank 0 (:class:`Lane` ``notice``). It hears from all how far they are, and knows
  who asked for the same in the ordinary way, joined, ended, or came with something else: it has the first two start it
  on the lane, too, and refuses it for the others' sake. The rhythm is over then, after a refusal for good.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple

from trainmaster_train.horovod.controller.handles import Handle
from trainmaster_train.horovod.controller.messages import ADASUM, ALLREDUCE, GLOBAL_SET, UNNAMED, CollectiveRequest

# How often a rhythm is heard before it is told, and how many operations it has at most.
_REPEATS = 3
_LONGEST_CYCLE = 16
_NOT_RUNNING: Tuple[int, Optional[Handle]] = (0, None)


class ResponseCache:
    """Rank 0's ear: finds the rhythm in what all ranks ask for and wait for."""

    def __init__(self) -> None:
        self._history: List[CollectiveRequest] = []
        self._fast_path_count = 0

    def observe(self, request: CollectiveRequest, fast_path_count: int) -> Tuple[CollectiveRequest, ...]:
        """What comes round from now on, after ``request``; nothing while that is not clear.

        Args:
            lane_count: how many operations the lane has had; what it had in between did not come to this ear.
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
    """Operation ``number`` of the lane was started unasked, and has not come to an end yet."""

    number: int
    request: CollectiveRequest


class FastPath:
    """One rank's side of it. Guarded by the engine's lock.

    ``started``: how many operations this rank has started on it; ``ended``: how many have come to an end, all of them
    together. ``beat``: what is next in the rhythm, without the number of one that has no name; ``None``: there is none.
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
        """The operation that is next in the rhythm starts, unasked."""
        self._running[handle.request.name] = (self.started, handle)
        self.started += 1
        self._next = (self._next + 1) % len(self._cycle)
        self.expected = self._cycle[self._next]

    def end(self, handle: Handle, *, is_done: bool) -> None:
        """Nobody waits for it any more; nothing where it is not on the lane."""
        number, running = self._running.get(handle.request.name, _NOT_RUNNING)
        if running is handle:
            del self._running[handle.request.name]
            if is_done:
                self.ended = max(self.ended, number + 1)

    @property
    def running(self) -> Dict[str, Handle]:
        """By name, what this rank started unasked and waits for."""
        return {name: handle for name, (_, handle) in self._running.items()}

    def has(self, request: CollectiveRequest) -> bool:
        return request.process_set == GLOBAL_SET and request.name in self._running

    def report_slow(self, handle: Handle) -> bool:
        """Let rank 0 know of an operation that takes long; whether it is one of these."""
        number, running = self._running.get(handle.request.name, _NOT_RUNNING)
        if running is handle:
            self._slow.append(PendingOperation(number, handle.request))
        return running is handle

    def progress(self) -> Tuple[int, int, List[PendingOperation]]:
        """``started``, ``ended``, and what is to be noticed, once."""
        slow = list(self._slow)
        self._slow.clear()
        return self.started, self.ended, slow


def is_repeatable(request: CollectiveRequest) -> bool:
    """Whether it may go unasked: an allreduce of all ranks, that ends nowhere before all have started it."""
    return (
        request.kind == ALLREDUCE
        and request.op != ADASUM
        and request.process_set == GLOBAL_SET
        and not request.group
        and request.device == "cpu"
    )


def _without_number(request: CollectiveRequest) -> CollectiveRequest:
    """The operation as it comes again: one without a name has another number each time."""
    stem, mark, _ = request.name.rpartition(UNNAMED)
    return request._replace(name=stem) if mark else request
