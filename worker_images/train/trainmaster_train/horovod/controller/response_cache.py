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

from trainmaster_train.horovod.controller.messages import ADASUM, ALLREDUCE, GLOBAL_SET, UNNAMED, Request
from trainmaster_train.horovod.handles import Handle

# How often a rhythm is heard before it is told, and how many operations it has at most.
_TIMES = 3
_LONGEST = 16
_NOTHING: Tuple[int, Optional[Handle]] = (0, None)


class Learner:
    """Rank 0's ear: finds the rhythm in what all ranks ask for and wait for."""

    def __init__(self) -> None:
        self._heard: List[Request] = []
        self._lane_count = 0

    def note(self, request: Request, lane_count: int) -> Tuple[Request, ...]:
        """What comes round from now on, after ``request``; nothing while that is not clear.

        Args:
            lane_count: how many operations the lane has had; what it had in between did not come to this ear.
        """
        if lane_count != self._lane_count:
            self._lane_count = lane_count
            self._heard.clear()
        heard = self._heard
        heard.append(_beat(request))
        for length in range(1, min(_LONGEST, len(heard) // _TIMES) + 1):
            if heard[length - length * _TIMES :] == heard[-length * _TIMES : -length]:
                beats = tuple(heard[-length:])
                heard.clear()
                return beats
        del heard[: -_LONGEST * _TIMES]
        return ()


class Notice(NamedTuple):
    """Operation ``number`` of the lane was started unasked, and has not come to an end yet."""

    number: int
    request: Request


class Lane:
    """One rank's side of it. Guarded by the engine's lock.

    ``started``: how many operations this rank has started on it; ``ended``: how many have come to an end, all of them
    together. ``beat``: what is next in the rhythm, without the number of one that has no name; ``None``: there is none.
    """

    def __init__(self) -> None:
        self.started = 0
        self.ended = 0
        self.beat: Optional[Request] = None
        self._notices: List[Notice] = []
        self._beats: Tuple[Request, ...] = ()
        self._next = 0
        self._running: Dict[str, Tuple[int, Handle]] = {}

    def follow(self, beats: Tuple[Request, ...]) -> None:
        self._beats, self._next = beats, 0
        self.beat = beats[0] if beats else None

    def is_next(self, request: Request) -> bool:
        return _beat(request) == self.beat

    def begin(self, handle: Handle) -> None:
        """The operation that is next in the rhythm starts, unasked."""
        self._running[handle.request.name] = (self.started, handle)
        self.started += 1
        self._next = (self._next + 1) % len(self._beats)
        self.beat = self._beats[self._next]

    def end(self, handle: Handle, *, is_done: bool) -> None:
        """Nobody waits for it any more; nothing where it is not on the lane."""
        number, running = self._running.get(handle.request.name, _NOTHING)
        if running is handle:
            del self._running[handle.request.name]
            if is_done:
                self.ended = max(self.ended, number + 1)

    @property
    def running(self) -> Dict[str, Handle]:
        """By name, what this rank started unasked and waits for."""
        return {name: handle for name, (_, handle) in self._running.items()}

    def has(self, request: Request) -> bool:
        return request.process_set == GLOBAL_SET and request.name in self._running

    def notice(self, handle: Handle) -> bool:
        """Let rank 0 know of an operation that takes long; whether it is one of these."""
        number, running = self._running.get(handle.request.name, _NOTHING)
        if running is handle:
            self._notices.append(Notice(number, handle.request))
        return running is handle

    def news(self) -> Tuple[int, int, List[Notice]]:
        """``started``, ``ended``, and what is to be noticed, once."""
        notices = list(self._notices)
        self._notices.clear()
        return self.started, self.ended, notices


def is_repeatable(request: Request) -> bool:
    """Whether it may go unasked: an allreduce of all ranks, that ends nowhere before all have started it."""
    return (
        request.kind == ALLREDUCE
        and request.op != ADASUM
        and request.process_set == GLOBAL_SET
        and not request.group
        and request.device == "cpu"
    )


def _beat(request: Request) -> Request:
    """The operation as it comes again: one without a name has another number each time."""
    stem, mark, _ = request.name.rpartition(UNNAMED)
    return request._replace(name=stem) if mark else request
