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
from trainmaster_train.horovod.controller.handles import Backend, Handle, InFlightOperation, StartedBatch
from trainmaster_train.horovod.controller.link import ControlLink
from trainmaster_train.horovod.controller.messages import (
    ADD_SET,
    ALLREDUCE,
    GLOBAL_SET,
    FAST_PATH,
    REMOVE_SET,
    CollectiveRequest,
    CollectiveResponse,
    request_of,
    response_of,
)
from trainmaster_train.horovod.controller.response_cache import FastPath, PendingOperation
from trainmaster_train.horovod.controller.stall_inspector import StallInspector
from trainmaster_train.horovod.controller.wakeup_pipe import WakeupPipe, wait_for
from trainmaster_train.horovod.errors import first_line
from trainmaster_train.horovod.settings import HorovodSettings

# Operations on the wire at once: one runs, the next is there when it ends; what comes meanwhile is fused.
_IN_FLIGHT = 2
_BUSY_S = 0.2
# For a peer that must not hold up an end.
_FAREWELL_S = 1.0
CLOSED = "hvd.shutdown() was called; call hvd.init() first."


class Controller:
    """Of ``rank`` in a gang of ``size``. ``links``: to every other rank on rank 0, to rank 0 on the others.

    ``state`` guards what is waited for; whoever calls :meth:`pump`, :meth:`fail` or :meth:`hang_up` is the one that
    drives, and does not hold it.
    """

    def __init__(self, rank: int, size: int, links: Mapping[int, ControlLink], backend: Backend, settings: HorovodSettings) -> None:
        self.rank = rank
        self.links = dict(links)
        self.backend = backend
        all_ranks = tuple(range(size))
        self.members: Dict[int, Tuple[int, ...]] = {GLOBAL_SET: all_ranks, FAST_PATH: all_ranks}
        self.wakeup = WakeupPipe()
        self.lock = threading.RLock()  # guards what follows
        self.state = threading.Condition(self.lock)
        self.outbox: Deque[CollectiveRequest] = deque()
        self.waiting: Dict[Tuple[int, str], Handle] = {}
        self.fast_path = FastPath()
        self.blocking: Optional[Handle] = None  # asked for with nothing on the lane, where nothing starts meanwhile
        self.failure: Optional[str] = None
        self.is_closed = False
        # The rank that coordinates reads for sets that it is not in, too.
        self.must_read = False
        self._coordinator: Optional[Coordinator] = None
        if rank == 0:
            self._coordinator = Coordinator(size, fusion_bytes=settings.fusion_bytes, has_fast_path=backend.has_fast_path)
        self._in_flight: Deque[StartedBatch] = deque()
        self._stall_inspector = StallInspector(self._coordinator, settings)

    def start_cached(self, handle: Handle) -> bool:
        """Start ``handle``'s operation, if that is next in the rhythm; whether it is. With ``state`` held."""
        if not self.fast_path.is_next(handle.request):
            return False
        response = CollectiveResponse(ALLREDUCE, FAST_PATH, (handle.request.name,))
        return self.start_expected(handle, lambda: StartedBatch(self.backend.start(response, [handle.entry], self.members[FAST_PATH])))

    def start_expected(self, handle: Handle, start: Callable[[], InFlightOperation]) -> bool:
        """``start`` what is next in the rhythm, as ``handle``; whether it could be. With ``state`` held."""
        request = handle.request
        if self.blocking is not None or (GLOBAL_SET, request.name) in self.waiting or self.fast_path.has(request):
            return False
        try:
            handle.batch = start()
        except (RuntimeError, OSError, ValueError):
            return False  # it is asked for, and fails again where all hear of it
        self.fast_path.begin(handle)
        return True

    def run_cycle(self, timeout_s: float) -> None:
        """One round: send what was submitted, hear the others, start what all are ready for."""
        if self.failure is not None or self.is_closed:
            self._fail_all(self.failure or CLOSED)
            return
        try:
            self._send_requests()
            if self._coordinator is not None:
                self._coordinate(self._coordinator)
            if self._receive(self._receive_timeout_s(timeout_s)) and self._coordinator is not None:
                self._coordinate(self._coordinator)
            self._check_stalls()
        except (ConnectionError, OSError, ValueError) as error:
            self.fail(f"the connection to rank 0 broke ({error}).")

    def poll_links(self, links: Mapping[int, ControlLink], event: int, timeout_s: float) -> Tuple[List[int], bool]:
        """The ranks of ``links`` with ``event`` (of poll), and whether this process has something new itself."""
        found, is_woken = wait_for(links, event, self.wakeup, timeout_s)
        if is_woken:
            with self.state:
                self.wakeup.clear()
        return found, is_woken

    def disconnect(self) -> None:
        """Say goodbye. Whoever still needs this rank fails at once."""
        for link in self.links.values():
            try:
                link.send({"bye": self.rank, "lane": self.fast_path.progress()}, _FAREWELL_S)
            except OSError:  # gone before us
                pass
            link.close()

    def fail(self, why: str) -> None:
        """Break for good: whoever waits fails, and the others hear it from rank 0."""
        if self.failure is None:
            self.failure = why
            for link in self.links.values():
                try:
                    link.send({"failed": why}, _FAREWELL_S)
                except OSError:  # gone, too
                    pass
        self._fail_all(self.failure)

    # Saying

    def _send_requests(self) -> None:
        with self.state:
            requests = list(self.outbox)
            self.outbox.clear()
            blocking = [] if self.blocking is None else [self.blocking.request.name]
            progress = self.fast_path.progress()
        if self._coordinator is not None:
            self._register(0, self._coordinator, requests, blocking, progress)
        elif requests or progress[-1]:
            self.links[0].send({"ready": requests, "quiet": blocking, "lane": progress})

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
                        self._handle_lost_link(rank, error)
            if self.failure is not None:
                return
            if 0 in members:
                self._start(response)

    def _receive_timeout_s(self, timeout_s: float) -> float:
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

    def _receive(self, timeout_s: float) -> bool:
        """Take in what the links bring; whether there was anything."""
        found, is_woken = self.poll_links(self.links, select.POLLIN, timeout_s)
        for rank in found:
            try:
                messages = self.links[rank].receive()
            except (OSError, ValueError) as error:
                self._handle_lost_link(rank, error)
                continue
            for message in messages:
                self._handle_message(rank, message)
        return is_woken or bool(found)

    def _handle_message(self, rank: int, message: Dict[str, Any]) -> None:
        if "do" in message:
            for data in message["do"]:
                self._start(response_of(data))
        elif "ready" in message and self._coordinator is not None:
            requests = list(map(request_of, message["ready"]))
            self._register(rank, self._coordinator, requests, message["quiet"], message["lane"])
        elif "bye" in message:
            self._handle_departure(rank, message["lane"])
        elif "failed" in message:
            self.fail(str(message["failed"]))

    def _register(
        self,
        rank: int,
        coordinator: Coordinator,
        requests: Sequence[CollectiveRequest],
        blocking: Sequence[str],
        progress: Sequence[Any],
    ) -> None:
        now_s = time.monotonic()
        started, ended, slow = progress
        fast_path = [PendingOperation(number, request_of(data)) for number, data in slow]
        coordinator.take_fast_path(rank, started, ended, fast_path, now_s)
        coordinator.take(rank, requests, now_s, blocking=blocking)

    def _handle_departure(self, rank: int, progress: Sequence[Any]) -> None:
        """A rank ended in good order. Only what needs it fails."""
        link = self.links.pop(rank, None)
        if link is not None:
            link.close()
        if self._coordinator is not None:
            self._register(rank, self._coordinator, [], [], progress)
            self._coordinator.leave(rank)
        else:
            # Without rank 0 there is nobody to agree with.
            self.fail("rank 0, which coordinates, ended or called hvd.shutdown().")

    def _handle_lost_link(self, rank: int, error: Exception) -> None:
        link = self.links.pop(rank, None)
        if link is not None:
            link.close()
        self.fail(f"rank {rank} is gone: its connection broke ({error}).")

    # Doing

    def _start(self, response: CollectiveResponse) -> None:
        if response.process_set == FAST_PATH and not self._apply_fast_path(response):
            return
        process_set = GLOBAL_SET if response.process_set == FAST_PATH else response.process_set
        with self.state:
            handles = [self.waiting.pop((process_set, name), None) for name in response.names]
        batch: Optional[StartedBatch] = None
        error = response.error
        if error is None:
            try:
                members = self.members[response.process_set]
                if response.kind == ADD_SET and handles[0] is not None:
                    self.members[response..result] = handles[0].request.shape
                    self.must_read = self._coordinator is not None
                elif response.kind == REMOVE_SET:
                    self.members.pop(response..result, None)
                entries = [None if handle is None else handle.entry for handle in handles]
                batch = StartedBatch(self.backend.start(response, entries, members))
            except (RuntimeError, OSError, ValueError) as failure:
                error = f"{response.kind} {response.names[0]!r} failed: {first_line(failure)}"
                self.fail(error)
            else:
                if self._coordinator is not None:
                    self._in_flight.append(batch)
        with self.state:
            for handle in handles:
                if handle is not None:
                    handle..result = response..result
                    handle.error = error
                    handle.batch = batch
                if handle is self.blocking:
                    self.blocking = None
            if response.cached_cycle:
                self.fast_path.set_cycle(response.cached_cycle)
            self.state.notify_all()

    def _apply_fast_path(self, response: CollectiveResponse) -> bool:
        """What rank 0 says of the lane ends the rhythm; whether this rank is to start something there, or is refused."""
        with self.state:
            self.fast_path.set_cycle(())
            if response.error is None:
                # Who has started it may have its result by now.
                must_start = self.fast_path.started == response..result
                self.fast_path.started = max(self.fast_path.started, response..result + 1)
                return must_start
            for handle in self.fast_path.running.values():
                handle.error = response.error
        self.backend.abort_fast_path()
        return True

    def _fail_all(self, why: str) -> None:
        with self.state:
            for handle in self.waiting.values():
                handle.error = why
            self.waiting.clear()
            self.outbox.clear()
            self.blocking = None
            self.fast_path.set_cycle(())
            self.state.notify_all()

    def _check_stalls(self) -> None:
        now_s = time.monotonic()
        if not self._stall_inspector.is_time(now_s):
            return
        with self.state:
            waiting = [*self.waiting.values(), *self.fast_path.running.values()]
        why = self._stall_inspector..inspect(waiting, now_s)
        if why is not None:
            self.fail(why)
