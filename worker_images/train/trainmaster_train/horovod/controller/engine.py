"""Runs the operations of one process: negotiates them with the coordinator, and starts them in its order.

A thread that waits for an operation drives the controller itself: a blocking call needs no other thread, and costs one
message to rank 0 and one back. While no thread waits (during a backward pass), a background thread drives. While
nothing is pending, that thread only watches for peers that die. Repeating operations skip the messages
(response_cache.py).
"""

from __future__ import annotations

import select
import threading
import time
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from trainmaster_train.horovod.controller.controller import CLOSED, Controller
from trainmaster_train.horovod.controller.link import ControlLink
from trainmaster_train.horovod.controller.messages import Backend, CollectiveRequest, Handle, InFlightOperation
from trainmaster_train.horovod.errors import HorovodInternalError, first_line
from trainmaster_train.horovod.settings import HorovodSettings

# How often a waiting thread checks that the gang is intact, and how often the idle background thread does.
_WAIT_SLICE_S = 0.2
_IDLE_CHECK_S = 2.0
# After this long an operation on the fast path is reported to rank 0: a rank may never start it.
_SLOW_S = 0.05
# POLLRDHUP is Linux's; elsewhere a closed connection is seen when it is next read.
_HANG_UP = getattr(select, "POLLRDHUP", 0)


class CollectiveEngine:
    """Of ``rank`` in a gang of ``size``. ``links``: to every other rank on rank 0, to rank 0 on the others."""

    def __init__(
        self, rank: int, size: int, links: Mapping[int, ControlLink], backend: Backend, settings: HorovodSettings
    ) -> None:
        self.rank = rank
        self._backend = backend
        self._controller = Controller(rank, size, links, backend, settings)
        self._state = self._controller.state
        self.fast_path = self._controller.fast_path
        self._driver_lock = threading.Lock()  # held by the thread that drives the controller
        self._waiters = 0
        self._thread = threading.Thread(target=self._run, name="trainmaster-horovod", daemon=True)
        self._thread.start()

    def members(self, process_set: int) -> Tuple[int, ...]:
        """Raises ``ValueError`` for an unknown process set."""
        members = self._controller.members.get(process_set)
        if members is None:
            raise ValueError(f"process set {process_set} is not there (any more); add it with hvd.add_process_set().")
        return members

    def submit(
        self, requests: Sequence[CollectiveRequest], entries: Sequence[Any], *, will_wait: bool = False
    ) -> List[Handle]:
        """Request operations; returns at once. ``will_wait``: the caller waits for them right away.

        Raises:
            HorovodInternalError: the gang is broken, or shut down.
            ValueError: a name is already on its way.
        """
        controller = self._controller
        now_s = time.monotonic()
        handles = [Handle(request, entry, now_s) for request, entry in zip(requests, entries)]
        is_single = will_wait and len(handles) == 1
        with self._state:
            self._check()
            if is_single and controller.start_cached(handles[0]):
                return handles
            for handle in handles:
                if self.rank not in self.members(handle.request.process_set):
                    raise ValueError(f"rank {self.rank} is not in process set {handle.request.process_set}.")
                key = (handle.request.process_set, handle.request.name)
                if key in controller.waiting or controller.fast_path.has(handle.request):
                    raise ValueError(
                        f"{handle.request.kind} {handle.request.name!r} is on its way already: wait for it "
                        "(hvd.synchronize), or give each operation a name of its own."
                    )
                controller.waiting[key] = handle
            if is_single and controller.blocking is None and not controller.fast_path.running:
                controller.blocking = handles[0]
            controller.outbox.extend(requests)
            if not will_wait:
                controller.wakeup.set()
        return handles

    def run_cached(
        self, request: CollectiveRequest, expected: CollectiveRequest, start: Callable[[], InFlightOperation]
    ) -> bool:
        """Run ``request``, which repeats ``expected``, if the :attr:`fast_path` still expects it; ``False``: submit it.

        A shorter equivalent of :meth:`submit` and :meth:`wait`.

        Raises:
            HorovodInternalError: it failed, or the gang is broken.
        """
        handle = Handle(request, None, time.monotonic())
        fast_path = self.fast_path
        with self._controller.lock:
            if fast_path.expected is not expected or not self._controller.start_expected(handle, start):
                return False
        self.wait(handle)
        return True

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
        is_done = False
        try:
            self._wait_for_end(handle, batch)
            is_done = True
        except (RuntimeError, OSError) as error:
            if isinstance(error, HorovodInternalError):
                raise
            why = self._failure_reason(handle, error)
            if handle.error is None:
                with self._driver_lock:
                    self._controller.fail(why)
            raise HorovodInternalError(handle.error or self.failure) from error
        finally:
            with self._controller.lock:
                self._controller.fast_path.end(handle, is_done=is_done)
        return handle

    def close(self) -> None:
        """Leave the gang. Operations that still need this rank fail at once. Does nothing the second time."""
        with self._state:
            if self._controller.is_closed:
                return
            self._controller.is_closed = True
            self.fast_path.set_cycle(())
            self._controller.wakeup.set()
        with self._driver_lock:
            self._controller.disconnect()
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self._controller.wakeup.close()
        self._backend.close()

    @property
    def failure(self) -> Optional[str]:
        """Why the gang is broken; ``None`` while it is intact."""
        return self._controller.failure

    def _check(self) -> None:
        if self.failure is not None:
            raise HorovodInternalError(self.failure)
        if self._controller.is_closed:
            raise HorovodInternalError(CLOSED)

    # Waiting

    def _wait_for_answer(self, handle: Handle) -> None:
        with self._state:
            self._waiters += 1
            if self._driver_lock.locked():
                self._controller.wakeup.set()  # the background thread drives: wake it so that it releases the lock
        try:
            while not handle.is_answered:
                if not self._try_cycle(_WAIT_SLICE_S, unless=handle):
                    with self._state:
                        if not handle.is_answered and self._driver_lock.locked():
                            self._state.wait(_WAIT_SLICE_S / 10)
        finally:
            with self._state:
                self._waiters -= 1
                if self._controller.waiting:
                    self._controller.wakeup.set()

    def _wait_for_end(self, handle: Handle, batch: InFlightOperation) -> None:
        if batch.wait(_SLOW_S):
            return
        with self._state:
            if self._controller.fast_path.report_slow(handle):
                self._controller.wakeup.set()
        while True:
            self._try_cycle(0.0)
            if handle.error is not None:
                raise HorovodInternalError(handle.error)
            if self.failure is not None:
                self._backend.abort()
                raise HorovodInternalError(self.failure)
            if batch.wait(_WAIT_SLICE_S):
                return

    def _failure_reason(self, handle: Handle, error: BaseException) -> str:
        """Why the operation failed: the coordinator's reason if it arrives within a second, else the transport's."""
        with self._state:
            self._controller.fast_path.report_slow(handle)
        end_s = time.monotonic() + 1.0
        while self.failure is None and handle.error is None and time.monotonic() < end_s:
            self._try_cycle(0.05, patience_s=0.05)
        return self.failure or f"{handle.request.kind} {handle.request.name!r} failed: {first_line(error)}"

    # Driving

    def _try_cycle(self, timeout_s: float, *, patience_s: float = 0.0, unless: Optional[Handle] = None) -> bool:
        """Run one cycle, unless ``unless`` is answered by then. ``False``: another thread drove for ``patience_s``."""
        if not self._driver_lock.acquire(timeout=patience_s):
            return False
        try:
            if unless is None or not unless.is_answered:
                self._controller.run_cycle(timeout_s)
        finally:
            self._driver_lock.release()
        with self._state:
            self._state.notify_all()
        return True

    def _run(self) -> None:
        controller = self._controller
        while not controller.is_closed:
            with self._state:
                is_needed = not self._waiters and (controller.must_read or bool(controller.waiting))
            if self.failure is not None:
                self._idle(is_driven=True)
            elif is_needed:
                self._try_cycle(_WAIT_SLICE_S, patience_s=_WAIT_SLICE_S)
            else:
                self._idle(is_driven=bool(self._waiters))

    def _idle(self, *, is_driven: bool) -> None:
        """Sleep until there is something to drive; from time to time check for closed links and stalls."""
        links = dict(self._controller.links) if self.failure is None else {}
        hung_up, is_woken = self._controller.poll_links(links, _HANG_UP, _IDLE_CHECK_S)
        if is_woken and not hung_up:
            return
        if self.failure is None and (hung_up or not is_driven):
            self._try_cycle(0.0, patience_s=_WAIT_SLICE_S)
