"""Runs the operations of one process: asks the coordinator, and starts what it answers, in its order.

Whoever waits for an operation drives the engine himself: a blocking call needs no other thread and costs one message
to rank 0 and one back. While nobody waits (a backward pass), a thread in the background drives. While nothing is to be
driven, that thread only watches for peers that die.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from typing import Any, Deque, Dict, List, Mapping, Optional, Sequence, Tuple

from trainmaster_train.horovod.coordinator import Coordinator
from trainmaster_train.horovod.errors import HorovodInternalError, first_line
from trainmaster_train.horovod.handles import Backend, Handle, Started
from trainmaster_train.horovod.link import Link
from trainmaster_train.horovod.messages import ADD_SET, GLOBAL_SET, Request, Response, request_of, response_of
from trainmaster_train.horovod.settings import Settings
from trainmaster_train.horovod.stalls import StallWatch
from trainmaster_train.horovod.wake import Wake, wait_for

# How often a wait looks whether the gang is still whole, and how often the background does where nobody waits.
_SLICE_S = 0.2
_LOOK_S = 2.0
# For a peer that must not hold up an end.
_LAST_WORD_S = 1.0
# Operations on the wire at once: one runs, the next is there when it ends; what comes meanwhile is fused.
_IN_FLIGHT = 2
# POLLRDHUP is Linux's; elsewhere a closed connection is seen when it is next read.
_HANG_UP = getattr(select, "POLLRDHUP", 0)


class Engine:
    """Of ``rank`` in a gang of ``size``. ``links``: to every other rank on rank 0, to rank 0 on the others."""

    def __init__(self, rank: int, size: int, links: Mapping[int, Link], backend: Backend, settings: Settings) -> None:
        self.rank = rank
        self._links = dict(links)
        self._backend = backend
        self._coordinator = Coordinator(size, fusion_bytes=settings.fusion_bytes) if rank == 0 else None
        self._members: Dict[int, Tuple[int, ...]] = {GLOBAL_SET: tuple(range(size))}
        self._drive = threading.Lock()  # held by whoever reads the links and starts operations
        self._state = threading.Condition()  # guards what follows
        self._outbox: Deque[Request] = deque()
        self._waiting: Dict[Tuple[int, str], Handle] = {}
        self._waiters = 0
        self._failure: Optional[str] = None
        self._is_closed = False
        self._in_flight: Deque[Started] = deque()
        self._stalls = StallWatch(self._coordinator, settings)
        self._wake = Wake()
        # The rank that coordinates reads for sets that it is not in, too.
        self._must_read = False
        self._thread = threading.Thread(target=self._run, name="trainmaster-horovod", daemon=True)
        self._thread.start()

    def members(self, process_set: int) -> Tuple[int, ...]:
        """Raises ``ValueError`` for a set that is not there."""
        found = self._members.get(process_set)
        if found is None:
            raise ValueError(f"process set {process_set} is not there (any more); add it with hvd.add_process_set().")
        return found

    def remove_set(self, number: int) -> None:
        """Forget a process set, on this rank."""
        self._members.pop(number, None)

    def submit(self, requests: Sequence[Request], jobs: Sequence[Any], *, will_wait: bool = False) -> List[Handle]:
        """Ask for operations; returns at once. ``will_wait``: the caller waits for them right away.

        Raises:
            HorovodInternalError: the gang is broken, or shut down.
            ValueError: a name is already on its way.
        """
        now_s = time.monotonic()
        handles = [Handle(request, job, now_s) for request, job in zip(requests, jobs)]
        with self._state:
            self._check()
            for handle in handles:
                if self.rank not in self.members(handle.request.process_set):
                    raise ValueError(f"rank {self.rank} is not in process set {handle.request.process_set}.")
                key = (handle.request.process_set, handle.request.name)
                if key in self._waiting:
                    raise ValueError(
                        f"{handle.request.kind} {handle.request.name!r} is on its way already: wait for it "
                        "(hvd.synchronize), or give each operation a name of its own."
                    )
                self._waiting[key] = handle
            self._outbox.extend(requests)
            if not will_wait:
                self._wake.set()
        return handles

    def poll(self, handle: Handle) -> bool:
        """Whether :meth:`wait` would return (or raise) at once."""
        return handle.error is not None or (handle.batch is not None and handle.batch.is_done())

    def wait(self, handle: Handle) -> Handle:
        """Return when the operation is done.

        Raises:
            HorovodInternalError: it failed, or the gang is broken.
        """
        if not handle.is_answered:
            self._wait_for_answer(handle)
        batch = handle.batch
        if batch is None:
            raise HorovodInternalError(handle.error)
        try:
            while not batch.wait(_SLICE_S):
                self._look_for_failure()
        except (RuntimeError, OSError) as error:
            if isinstance(error, HorovodInternalError):
                raise
            why = self._why(handle, error)
            with self._drive:
                self._fail(why)
            raise HorovodInternalError(self._failure) from error
        return handle

    def close(self) -> None:
        """Say goodbye. Whoever still needs this rank fails at once. Does nothing the second time."""
        with self._state:
            if self._is_closed:
                return
            self._is_closed = True
            self._wake.set()
        with self._drive:
            for link in self._links.values():
                try:
                    link.send({"bye": self.rank}, _LAST_WORD_S)
                except OSError:  # gone before us
                    pass
                link.close()
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self._wake.close()
        self._backend.close()

    @property
    def failure(self) -> Optional[str]:
        """Why the gang is broken; ``None`` while it is whole."""
        return self._failure

    # Waiting

    def _wait_for_answer(self, handle: Handle) -> None:
        with self._state:
            self._waiters += 1
            if self._drive.locked():
                self._wake.set()  # the background drives: it shall let go
        try:
            while not handle.is_answered:
                if self._drive.acquire(blocking=False):
                    try:
                        if not handle.is_answered:
                            self._pump(_SLICE_S)
                    finally:
                        self._drive.release()
                    with self._state:
                        self._state.notify_all()
                else:
                    with self._state:
                        if not handle.is_answered and self._drive.locked():
                            self._state.wait(_SLICE_S / 10)
        finally:
            with self._state:
                self._waiters -= 1
                if self._waiting:
                    self._wake.set()

    def _look_for_failure(self) -> None:
        if self._drive.acquire(blocking=False):
            try:
                self._pump(0.0)
            finally:
                self._drive.release()
        if self._failure is not None:
            self._backend.abort()
            raise HorovodInternalError(self._failure)

    def _why(self, handle: Handle, error: BaseException) -> str:
        """The reason of a failed operation: rather the coordinator's than the wire's, if it comes within a moment."""
        end_s = time.monotonic() + 1.0
        while self._failure is None and time.monotonic() < end_s:
            if self._drive.acquire(timeout=0.05):
                try:
                    self._pump(0.05)
                finally:
                    self._drive.release()
        return self._failure or f"{handle.request.kind} {handle.request.name!r} failed: {first_line(error)}"

    # Driving: only with self._drive held

    def _pump(self, timeout_s: float) -> None:
        """One round: send what was submitted, hear the others, start what all are ready for."""
        if self._failure is not None or self._is_closed:
            self._answer_all(self._failure or "hvd.shutdown() was called.")
            return
        try:
            self._send_requests()
            if self._coordinator is not None:
                self._coordinate(self._coordinator)
            if self._hear(self._time_to_hear(timeout_s)) and self._coordinator is not None:
                self._coordinate(self._coordinator)
            self._look_for_stalls()
        except (ConnectionError, OSError, ValueError) as error:
            self._fail(f"the connection to rank 0 broke ({error}).")

    def _time_to_hear(self, timeout_s: float) -> float:
        coordinator = self._coordinator
        if coordinator is None or not coordinator.has_ready:
            return timeout_s
        # All is ready and only the wire is busy: that is what to wait for.
        try:
            self._in_flight[0].wait(min(timeout_s, _SLICE_S))
        except (RuntimeError, OSError):
            self._in_flight.popleft()  # whoever waits for it tells
        return 0.0

    def _send_requests(self) -> None:
        with self._state:
            requests = list(self._outbox)
            self._outbox.clear()
        if not requests:
            return
        if self._coordinator is not None:
            self._coordinator.take(0, requests, time.monotonic())
        else:
            self._links[0].send({"ready": requests})

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
            for rank, link in list(self._links.items()):
                if rank in members:
                    try:
                        link.send({"do": [response]})
                    except OSError as error:
                        self._lost(rank, error)
            if self._failure is not None:
                return
            if 0 in members:
                self._start(response)

    def _hear(self, timeout_s: float) -> bool:
        """Take in what the links bring; whether there was anything."""
        found, is_woken = self._listen(self._links, select.POLLIN, timeout_s)
        for rank in found:
            try:
                messages = self._links[rank].receive()
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
            self._coordinator.take(rank, map(request_of, message["ready"]), time.monotonic())
        elif "bye" in message:
            self._left(rank)
        elif "failed" in message:
            self._fail(str(message["failed"]))

    def _left(self, rank: int) -> None:
        """A rank ended in good order. Only what needs it fails."""
        link = self._links.pop(rank, None)
        if link is not None:
            link.close()
        if self._coordinator is not None:
            self._coordinator.leave(rank)
        else:
            # Without rank 0 there is nobody to agree with.
            self._fail("rank 0, which coordinates, ended or called hvd.shutdown().")

    def _lost(self, rank: int, error: Exception) -> None:
        link = self._links.pop(rank, None)
        if link is not None:
            link.close()
        self._fail(f"rank {rank} is gone: its connection broke ({error}).")

    def _start(self, response: Response) -> None:
        with self._state:
            handles = [self._waiting.pop((response.process_set, name), None) for name in response.names]
        batch: Optional[Started] = None
        error = response.error
        if error is None:
            try:
                members = self._members[response.process_set]
                if response.kind == ADD_SET and handles[0] is not None:
                    self._members[response.last] = handles[0].request.shape
                    self._must_read = self._coordinator is not None
                jobs = [None if handle is None else handle.job for handle in handles]
                batch = Started(self._backend.start(response, jobs, members))
            except (RuntimeError, OSError, ValueError) as failure:
                error = f"{response.kind} {response.names[0]!r} failed: {first_line(failure)}"
                self._fail(error)
            else:
                if self._coordinator is not None:
                    self._in_flight.append(batch)
        with self._state:
            for handle in handles:
                if handle is not None:
                    handle.last = response.last
                    handle.error = error
                    handle.batch = batch
            self._state.notify_all()

    # Failing

    def _fail(self, why: str) -> None:
        """Break for good: whoever waits fails, and the others hear it from rank 0."""
        if self._failure is None:
            self._failure = why
            for link in self._links.values():
                try:
                    link.send({"failed": why}, _LAST_WORD_S)
                except OSError:  # gone, too
                    pass
        self._answer_all(self._failure)

    def _answer_all(self, why: str) -> None:
        with self._state:
            for handle in self._waiting.values():
                handle.error = why
            self._waiting.clear()
            self._outbox.clear()
            self._state.notify_all()

    def _check(self) -> None:
        if self._failure is not None:
            raise HorovodInternalError(self._failure)
        if self._is_closed:
            raise HorovodInternalError("hvd.shutdown() was called; call hvd.init() first.")

    def _look_for_stalls(self) -> None:
        now_s = time.monotonic()
        if not self._stalls.is_time(now_s):
            return
        with self._state:
            waiting = list(self._waiting.values())
        why = self._stalls.look(waiting, now_s)
        if why is not None:
            self._fail(why)

    # The background

    def _run(self) -> None:
        while not self._is_closed:
            with self._state:
                is_needed = not self._waiters and (self._must_read or bool(self._waiting))
            if self._failure is not None:
                self._rest(is_driven=True)
            elif is_needed:
                if self._drive.acquire(timeout=_SLICE_S):
                    try:
                        if not self._is_closed:
                            self._pump(_SLICE_S)
                    finally:
                        self._drive.release()
                    with self._state:
                        self._state.notify_all()
            else:
                self._rest(is_driven=bool(self._waiters))

    def _rest(self, *, is_driven: bool) -> None:
        """Sleep until there is something to drive; look after peers that hang up, and for stalls, now and then."""
        links = dict(self._links) if self._failure is None else {}
        found, is_woken = self._listen(links, _HANG_UP, _LOOK_S)
        if is_woken and not found:
            return
        if self._failure is None and (found or not is_driven) and self._drive.acquire(timeout=_SLICE_S):
            try:
                if not self._is_closed:
                    self._pump(0.0)
            finally:
                self._drive.release()

    def _listen(self, links: Mapping[int, Link], event: int, timeout_s: float) -> Tuple[List[int], bool]:
        found, is_woken = wait_for(links, event, self._wake, timeout_s)
        if is_woken:
            with self._state:
                self._wake.clear()
        return found, is_woken
