"""A rank's controller: it exchanges requests and responses with rank 0, and starts or fails the operations.

One thread at a time drives it; the engine decides which one. The stall inspector warns of operations that wait too
long, names the missing ranks, and ends the wait at last.
"""

from __future__ import annotations

import select
import sys
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Tuple

from trainmaster_train.horovod.controller.coordinator import Coordinator
from trainmaster_train.horovod.controller.link import ControlLink, WakeupPipe, wait_for_event
from trainmaster_train.horovod.controller.messages import (
    ADD_SET,
    ALLREDUCE,
    FAST_PATH,
    GLOBAL_SET,
    REMOVE_SET,
    Backend,
    CollectiveRequest,
    CollectiveResponse,
    Handle,
    InFlightOperation,
    StartedBatch,
    request_of,
    response_of,
)
from trainmaster_train.horovod.controller.response_cache import FastPath, PendingOperation
from trainmaster_train.horovod.errors import first_line
from trainmaster_train.horovod.settings import HorovodSettings

# Operations on the wire at once: one runs, the next follows at once; requests that arrive meanwhile are fused.
_IN_FLIGHT = 2
_BUSY_S = 0.2
# How long a farewell may take: a peer must not delay the end of this process.
_FAREWELL_S = 1.0
CLOSED = "hvd.shutdown() was called; call hvd.init() first."


class StallInspector:
    """``coordinator``: only on rank 0, which alone knows the missing ranks; ``None`` on the others."""

    def __init__(self, coordinator: Optional[Coordinator], settings: HorovodSettings) -> None:
        self._coordinator = coordinator
        self._settings = settings
        self._next_check_s = 0.0
        self._warned_at: Dict[str, float] = {}

    def is_time(self, now_s: float) -> bool:
        """Whether the next :meth:`inspect` is due."""
        return now_s >= self._next_check_s

    def inspect(self, waiting: Sequence[Handle], now_s: float) -> Optional[str]:
        """Why the gang has to fail, or ``None``. Warns of long waits, at most once in ``stall_warn_s`` each.

        Args:
            waiting: this process's operations that are not answered yet.
        """
        settings = self._settings
        self._next_check_s = now_s + min(1.0, settings.stall_end_s / 4, settings.stall_warn_s / 4)
        if self._coordinator is None:
            return self._inspect_rank_0(waiting, now_s)
        for stall in self._coordinator.stalls(now_s):
            if stall.waited_s >= settings.stall_end_s:
                return f"{stall.sentence()}; that is the end (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)."
            name = stall.request.name
            if stall.waited_s >= settings.stall_warn_s and now_s >= self._warned_at.get(name, 0.0):
                self._warned_at[name] = now_s + settings.stall_warn_s
                print(f"trainmaster.horovod: {stall.sentence()}.", file=sys.stderr, flush=True)
        return None

    def _inspect_rank_0(self, waiting: Sequence[Handle], now_s: float) -> Optional[str]:
        """Rank 0 ends a stall, unless it hangs itself: then this rank does, a little later."""
        patience_s = self._settings.stall_end_s * 1.5 + 5.0
        if all(now_s - handle.submitted_s <= patience_s for handle in waiting):
            return None
        shown = ", ".join(repr(handle.request.name) for handle in waiting[:3])
        return f"no answer from rank 0, which coordinates, for {patience_s:.0f} s ({shown})."


class Controller:
    """Of ``rank`` in a gang of ``size``. ``links``: to every other rank on rank 0, to rank 0 on the others.

    ``state`` guards the queues and handles. The thread that calls :meth:`run_cycle`, :meth:`fail` or
    :meth:`disconnect` is the driver, and does not hold ``state``.
    """

    def __init__(
        self, rank: int, size: int, links: Mapping[int, ControlLink], backend: Backend, settings: HorovodSettings
    ) -> None:
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
        self.blocking: Optional[Handle] = None  # waited for while the fast path is idle; nothing starts there meanwhile
        self.failure: Optional[str] = None
        self.is_closed = False
        # Rank 0 coordinates process sets that it is not a member of, too.
        self.must_read = False
        self._coordinator: Optional[Coordinator] = None
        if rank == 0:
            self._coordinator = Coordinator(
                size, fusion_bytes=settings.fusion_bytes, has_fast_path=backend.has_fast_path
            )
        self._in_flight: Deque[StartedBatch] = deque()
        self._stall_inspector = StallInspector(self._coordinator, settings)

    def start_cached(self, handle: Handle) -> bool:
        """Start ``handle``'s operation if the fast path expects it, else return ``False``. Holds ``state``."""
        if not self.fast_path.is_next(handle.request):
            return False
        response = CollectiveResponse(ALLREDUCE, FAST_PATH, (handle.request.name,))
        return self.start_expected(
            handle, lambda: StartedBatch(self.backend.start(response, [handle.entry], self.members[FAST_PATH]))
        )

    def start_expected(self, handle: Handle, start: Callable[[], InFlightOperation]) -> bool:
        """Call ``start`` for the expected operation; returns whether it was started. Holds ``state``."""
        request = handle.request
        if self.blocking is not None or (GLOBAL_SET, request.name) in self.waiting or self.fast_path.has(request):
            return False
        try:
            handle.batch = start()
        except (RuntimeError, OSError, ValueError):
            return False  # it is negotiated instead, and fails again there, where all ranks learn of it
        self.fast_path.begin(handle)
        return True

    def run_cycle(self, timeout_s: float) -> None:
        """One cycle: send submitted requests, receive those of the others, start what all ranks are ready for."""
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
        """The ranks of ``links`` with ``event`` (of poll), and whether this process was woken."""
        ready, is_woken = wait_for_event(links, event, self.wakeup, timeout_s)
        if is_woken:
            with self.state:
                self.wakeup.clear()
        return ready, is_woken

    def disconnect(self) -> None:
        """Announce the departure and close all links. Operations that still need this rank fail at once."""
        for link in self.links.values():
            try:
                link.send({"bye": self.rank, "fast_path": self.fast_path.progress()}, _FAREWELL_S)
            except OSError:  # the peer left first
                pass
            link.close()

    def fail(self, why: str) -> None:
        """Break the gang for good: all waiting operations fail, and rank 0 passes the reason on."""
        if self.failure is None:
            self.failure = why
            for link in self.links.values():
                try:
                    link.send({"failed": why}, _FAREWELL_S)
                except OSError:  # this peer is gone, too
                    pass
        self._fail_all(self.failure)

    # Sending

    def _send_requests(self) -> None:
        with self.state:
            requests = list(self.outbox)
            self.outbox.clear()
            blocking = [] if self.blocking is None else [self.blocking.request.name]
            progress = self.fast_path.progress()
        if self._coordinator is not None:
            self._register(0, self._coordinator, requests, blocking, progress)
        elif requests or progress[-1]:
            self.links[0].send({"requests": requests, "blocking": blocking, "fast_path": progress})

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
                        link.send({"responses": [response]})
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
        # Operations are ready and only the wire is busy: wait for the wire.
        try:
            self._in_flight[0].wait(min(timeout_s, _BUSY_S))
        except (RuntimeError, OSError):
            self._in_flight.popleft()  # the thread that waits for it reports the error
        return 0.0

    # Receiving

    def _receive(self, timeout_s: float) -> bool:
        """Handle the messages that have arrived; returns whether there were any."""
        ready, is_woken = self.poll_links(self.links, select.POLLIN, timeout_s)
        for rank in ready:
            try:
                messages = self.links[rank].receive()
            except (OSError, ValueError) as error:
                self._handle_lost_link(rank, error)
                continue
            for message in messages:
                self._handle_message(rank, message)
        return is_woken or bool(ready)

    def _handle_message(self, rank: int, message: Dict[str, Any]) -> None:
        if "responses" in message:
            for data in message["responses"]:
                self._start(response_of(data))
        elif "requests" in message and self._coordinator is not None:
            requests = list(map(request_of, message["requests"]))
            self._register(rank, self._coordinator, requests, message["blocking"], message["fast_path"])
        elif "bye" in message:
            self._handle_departure(rank, message["fast_path"])
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
        """A rank left in good order. Only operations that need it fail."""
        link = self.links.pop(rank, None)
        if link is not None:
            link.close()
        if self._coordinator is not None:
            self._register(rank, self._coordinator, [], [], progress)
            self._coordinator.leave(rank)
        else:
            # Without rank 0 nothing can be negotiated.
            self.fail("rank 0, which coordinates, ended or called hvd.shutdown().")

    def _handle_lost_link(self, rank: int, error: Exception) -> None:
        link = self.links.pop(rank, None)
        if link is not None:
            link.close()
        self.fail(f"rank {rank} is gone: its connection broke ({error}).")

    # Executing

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
                    self.members[response.result] = handles[0].request.shape
                    self.must_read = self._coordinator is not None
                elif response.kind == REMOVE_SET:
                    self.members.pop(response.result, None)
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
                    handle.result = response.result
                    handle.error = error
                    handle.batch = batch
                if handle is self.blocking:
                    self.blocking = None
            if response.cached_cycle:
                self.fast_path.set_cycle(response.cached_cycle)
            self.state.notify_all()

    def _apply_fast_path(self, response: CollectiveResponse) -> bool:
        """A response about the fast path ends the cycle; returns whether this rank has to act on it."""
        with self.state:
            self.fast_path.set_cycle(())
            if response.error is None:
                # A rank that has started it may have its result by now.
                must_start = self.fast_path.started == response.result
                self.fast_path.started = max(self.fast_path.started, response.result + 1)
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
        why = self._stall_inspector.inspect(waiting, now_s)
        if why is not None:
            self.fail(why)
