"""What one rank and rank 0 say to each other, and what comes of it: operations start, or fail by name.

One thread at a time drives it; which one is the engine's business.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Tuple

from trainmaster_train.horovod.controller.coordinator import Coordinator
from trainmaster_train.horovod.controller.link import Link
from trainmaster_train.horovod.controller.messages import (
    ADD_SET,
    ALLREDUCE,
    GLOBAL_SET,
    LANE,
    REMOVE_SET,
    Request,
    Response,
    request_of,
    response_of,
)
from trainmaster_train.horovod.controller.response_cache import Lane, Notice
from trainmaster_train.horovod.controller.stall_inspector import StallWatch
from trainmaster_train.horovod.controller.wakeup_pipe import Wake, wait_for
from trainmaster_train.horovod.errors import first_line
from trainmaster_train.horovod.handles import Backend, Handle, Running, Started
from trainmaster_train.horovod.settings import Settings

# Operations on the wire at once: one runs, the next is there when it ends; what comes meanwhile is fused.
_IN_FLIGHT = 2
_BUSY_S = 0.2
# For a peer that must not hold up an end.
_LAST_WORD_S = 1.0
CLOSED = "hvd.shutdown() was called; call hvd.init() first."


class Conversation:
    """Of ``rank`` in a gang of ``size``. ``links``: to every other rank on rank 0, to rank 0 on the others.

    ``state`` guards what is waited for; whoever calls :meth:`pump`, :meth:`fail` or :meth:`hang_up` is the one that
    drives, and does not hold it.
    """

    def __init__(self, rank: int, size: int, links: Mapping[int, Link], backend: Backend, settings: Settings) -> None:
        self.rank = rank
        self.links = dict(links)
        self.backend = backend
        everybody = tuple(range(size))
        self.members: Dict[int, Tuple[int, ...]] = {GLOBAL_SET: everybody, LANE: everybody}
        self.wake = Wake()
        self.lock = threading.RLock()  # guards what follows
        self.state = threading.Condition(self.lock)
        self.outbox: Deque[Request] = deque()
        self.waiting: Dict[Tuple[int, str], Handle] = {}
        self.lane = Lane()
        self.quiet: Optional[Handle] = None  # asked for with nothing on the lane, where nothing starts meanwhile
        self.failure: Optional[str] = None
        self.is_closed = False
        # The rank that coordinates reads for sets that it is not in, too.
        self.must_read = False
        self._coordinator: Optional[Coordinator] = None
        if rank == 0:
            self._coordinator = Coordinator(size, fusion_bytes=settings.fusion_bytes, has_lane=backend.has_lane)
        self._in_flight: Deque[Started] = deque()
        self._stalls = StallWatch(self._coordinator, settings)

    def start_unasked(self, handle: Handle) -> bool:
        """Start ``handle``'s operation, if that is next in the rhythm; whether it is. With ``state`` held."""
        if not self.lane.is_next(handle.request):
            return False
        response = Response(ALLREDUCE, LANE, (handle.request.name,))
        return self.start_beat(handle, lambda: Started(self.backend.start(response, [handle.job], self.members[LANE])))

    def start_beat(self, handle: Handle, start: Callable[[], Running]) -> bool:
        """``start`` what is next in the rhythm, as ``handle``; whether it could be. With ``state`` held."""
        request = handle.request
        if self.quiet is not None or (GLOBAL_SET, request.name) in self.waiting or self.lane.has(request):
            return False
        try:
            handle.batch = start()
        except (RuntimeError, OSError, ValueError):
            return False  # it is asked for, and fails again where all hear of it
        self.lane.begin(handle)
        return True

    def pump(self, timeout_s: float) -> None:
        """One round: send what was submitted, hear the others, start what all are ready for."""
        if self.failure is not None or self.is_closed:
            self._answer_all(self.failure or CLOSED)
            return
        try:
            self._send_requests()
            if self._coordinator is not None:
                self._coordinate(self._coordinator)
            if self._hear(self._time_to_hear(timeout_s)) and self._coordinator is not None:
                self._coordinate(self._coordinator)
            self._look_for_stalls()
        except (ConnectionError, OSError, ValueError) as error:
            self.fail(f"the connection to rank 0 broke ({error}).")

    def listen(self, links: Mapping[int, Link], event: int, timeout_s: float) -> Tuple[List[int], bool]:
        """The ranks of ``links`` with ``event`` (of poll), and whether this process has something new itself."""
        found, is_woken = wait_for(links, event, self.wake, timeout_s)
        if is_woken:
            with self.state:
                self.wake.clear()
        return found, is_woken

    def hang_up(self) -> None:
        """Say goodbye. Whoever still needs this rank fails at once."""
        for link in self.links.values():
            try:
                link.send({"bye": self.rank, "lane": self.lane.news()}, _LAST_WORD_S)
            except OSError:  # gone before us
                pass
            link.close()

    def fail(self, why: str) -> None:
        """Break for good: whoever waits fails, and the others hear it from rank 0."""
        if self.failure is None:
            self.failure = why
            for link in self.links.values():
                try:
                    link.send({"failed": why}, _LAST_WORD_S)
                except OSError:  # gone, too
                    pass
        self._answer_all(self.failure)

    # Saying

    def _send_requests(self) -> None:
        with self.state:
            requests = list(self.outbox)
            self.outbox.clear()
            quiet = [] if self.quiet is None else [self.quiet.request.name]
            news = self.lane.news()
        if self._coordinator is not None:
            self._note(0, self._coordinator, requests, quiet, news)
        elif requests or news[-1]:
            self.links[0].send({"ready": requests, "quiet": quiet, "lane": news})

    def _coordinate(self, coordinator: Coordinator) -> None:
        while coordinator.has_ready:
            while self._in_flight and self._in_flight[0].is_done():
                self._in_flight.popleft()
            if len(self._in_flight) >= _IN_FLIGHT:
                return
            response = coordinator.next_response()
            if response is None:
                return
            members = coordinator.members(response.process_set)
            for rank, link in list(self.links.items()):
                if rank in members:
                    try:
                        link.send({"do": [response]})
                    except OSError as error:
                        self._lost(rank, error)
            if self.failure is not None:
                return
            if 0 in members:
                self._start(response)

    def _time_to_hear(self, timeout_s: float) -> float:
        coordinator = self._coordinator
        if coordinator is None or not coordinator.has_ready:
            return timeout_s
        # All is ready and only the wire is busy: that is what to wait for.
        try:
            self._in_flight[0].wait(min(timeout_s, _BUSY_S))
        except (RuntimeError, OSError):
            self._in_flight.popleft()  # whoever waits for it tells
        return 0.0

    # Hearing

    def _hear(self, timeout_s: float) -> bool:
        """Take in what the links bring; whether there was anything."""
        found, is_woken = self.listen(self.links, select.POLLIN, timeout_s)
        for rank in found:
            try:
                messages = self.links[rank].receive()
            except (OSError, ValueError) as error:
                self._lost(rank, error)
                continue
            for message in messages:
                self._take(rank, message)
        return is_woken or bool(found)

    def _take(self, rank: int, message: Dict[str, Any]) -> None:
        if "do" in message:
            for data in message["do"]:
                self._start(response_of(data))
        elif "ready" in message and self._coordinator is not None:
            requests = list(map(request_of, message["ready"]))
            self._note(rank, self._coordinator, requests, message["quiet"], message["lane"])
        elif "bye" in message:
            self._left(rank, message["lane"])
        elif "failed" in message:
            self.fail(str(message["failed"]))

    def _note(
        self,
        rank: int,
        coordinator: Coordinator,
        requests: Sequence[Request],
        quiet: Sequence[str],
        news: Sequence[Any],
    ) -> None:
        now_s = time.monotonic()
        started, ended, notices = news
        lane = [Notice(number, request_of(data)) for number, data in notices]
        coordinator.take_lane(rank, started, ended, lane, now_s)
        coordinator.take(rank, requests, now_s, quiet=quiet)

    def _left(self, rank: int, news: Sequence[Any]) -> None:
        """A rank ended in good order. Only what needs it fails."""
        link = self.links.pop(rank, None)
        if link is not None:
            link.close()
        if self._coordinator is not None:
            self._note(rank, self._coordinator, [], [], news)
            self._coordinator.leave(rank)
        else:
            # Without rank 0 there is nobody to agree with.
            self.fail("rank 0, which coordinates, ended or called hvd.shutdown().")

    def _lost(self, rank: int, error: Exception) -> None:
        link = self.links.pop(rank, None)
        if link is not None:
            link.close()
        self.fail(f"rank {rank} is gone: its connection broke ({error}).")

    # Doing

    def _start(self, response: Response) -> None:
        if response.process_set == LANE and not self._obey(response):
            return
        process_set = GLOBAL_SET if response.process_set == LANE else response.process_set
        with self.state:
            handles = [self.waiting.pop((process_set, name), None) for name in response.names]
        batch: Optional[Started] = None
        error = response.error
        if error is None:
            try:
                members = self.members[response.process_set]
                if response.kind == ADD_SET and handles[0] is not None:
                    self.members[response.last] = handles[0].request.shape
                    self.must_read = self._coordinator is not None
                elif response.kind == REMOVE_SET:
                    self.members.pop(response.last, None)
                jobs = [None if handle is None else handle.job for handle in handles]
                batch = Started(self.backend.start(response, jobs, members))
            except (RuntimeError, OSError, ValueError) as failure:
                error = f"{response.kind} {response.names[0]!r} failed: {first_line(failure)}"
                self.fail(error)
            else:
                if self._coordinator is not None:
                    self._in_flight.append(batch)
        with self.state:
            for handle in handles:
                if handle is not None:
                    handle.last = response.last
                    handle.error = error
                    handle.batch = batch
                if handle is self.quiet:
                    self.quiet = None
            if response.rhythm:
                self.lane.follow(response.rhythm)
            self.state.notify_all()

    def _obey(self, response: Response) -> bool:
        """What rank 0 says of the lane ends the rhythm; whether this rank is to start something there, or is refused."""
        with self.state:
            self.lane.follow(())
            if response.error is None:
                # Who has started it may have its result by now.
                is_asked = self.lane.started == response.last
                self.lane.started = max(self.lane.started, response.last + 1)
                return is_asked
            for handle in self.lane.running.values():
                handle.error = response.error
        self.backend.abort_lane()
        return True

    def _answer_all(self, why: str) -> None:
        with self.state:
            for handle in self.waiting.values():
                handle.error = why
            self.waiting.clear()
            self.outbox.clear()
            self.quiet = None
            self.lane.follow(())
            self.state.notify_all()

    def _look_for_stalls(self) -> None:
        now_s = time.monotonic()
        if not self._stalls.is_time(now_s):
            return
        with self.state:
            waiting = [*self.waiting.values(), *self.lane.running.values()]
        why = self._stalls.look(waiting, now_s)
        if why is not None:
            self.fail(why)
