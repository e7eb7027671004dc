"""Runs the operations of one process: asks the coordinator, and starts what it answers, in its order.

Whoever waits for an operation drives the engine himself: a blocking call needs no other thread and costs one message
to rank 0 and one back. While nobody waits (a backward pass), a thread in the background drives. While nothing is to be
driven, that thread only watches for peers that die. What repeats goes without those messages (rhythm.py).
"""

from __future__ import annotations

import select
import threading
import time
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from trainmaster_train.horovod.controller.controller import CLOSED, Conversation
from trainmaster_train.horovod.controller.link import Link
from trainmaster_train.horovod.controller.messages import Request
from trainmaster_train.horovod.errors import HorovodInternalError, first_line
from trainmaster_train.horovod.handles import Backend, Handle, Running
from trainmaster_train.horovod.settings import Settings

# How often a wait looks whether the gang is still whole, and how often the background does where nobody waits.
_SLICE_S = 0.2
_LOOK_S = 2.0
# After how long rank 0 is told of an operation that was started unasked: somebody may not come to it.
_NOTICE_S = 0.05
# POLLRDHUP is Linux's; elsewhere a closed connection is seen when it is next read.
_HANG_UP = getattr(select, "POLLRDHUP", 0)


class Engine:
    """Of ``rank`` in a gang of ``size``. ``links``: to every other rank on rank 0, to rank 0 on the others."""

    def __init__(self, rank: int, size: int, links: Mapping[int, Link], backend: Backend, settings: Settings) -> None:
        self.rank = rank
        self._backend = backend
        self._talk = Conversation(rank, size, links, backend, settings)
        self._state = self._talk.state
        self.lane = self._talk.lane
        self._drive = threading.Lock()  # held by whoever drives the conversation
        self._waiters = 0
        self._thread = threading.Thread(target=self._run, name="trainmaster-horovod", daemon=True)
        self._thread.start()

    def members(self, process_set: int) -> Tuple[int, ...]:
        """Raises ``ValueError`` for a set that is not there."""
        found = self._talk.members.get(process_set)
        if found is None:
            raise ValueError(f"process set {process_set} is not there (any more); add it with hvd.add_process_set().")
        return found

    def submit(self, requests: Sequence[Request], jobs: Sequence[Any], *, will_wait: bool = False) -> List[Handle]:
        """Ask for operations; returns at once. ``will_wait``: the caller waits for them right away.

        Raises:
            HorovodInternalError: the gang is broken, or shut down.
            ValueError: a name is already on its way.
        """
        talk = self._talk
        now_s = time.monotonic()
        handles = [Handle(request, job, now_s) for request, job in zip(requests, jobs)]
        is_single = will_wait and len(handles) == 1
        with self._state:
            self._check()
            if is_single and talk.start_unasked(handles[0]):
                return handles
            for handle in handles:
                if self.rank not in self.members(handle.request.process_set):
                    raise ValueError(f"rank {self.rank} is not in process set {handle.request.process_set}.")
                key = (handle.request.process_set, handle.request.name)
                if key in talk.waiting or talk.lane.has(handle.request):
                    raise ValueError(
                        f"{handle.request.kind} {handle.request.name!r} is on its way already: wait for it "
                        "(hvd.synchronize), or give each operation a name of its own."
                    )
                talk.waiting[key] = handle
            if is_single and talk.quiet is None and not talk.lane.running:
                talk.quiet = handles[0]
            talk.outbox.extend(requests)
            if not will_wait:
                talk.wake.set()
        return handles

    def run_beat(self, request: Request, beat: Request, start: Callable[[], Running]) -> bool:
        """Run ``request``, if ``beat``, which it repeats, is next on the :attr:`lane` still; ``False``: submit it.

        What :meth:`submit` and :meth:`wait` would do for it, by a shorter road.

        Raises:
            HorovodInternalError: it failed, or the gang is broken.
        """
        handle = Handle(request, None, time.monotonic())
        lane = self.lane
        with self._talk.lock:
            if lane.beat is not beat or not self._talk.start_beat(handle, start):
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
            why = self._why(handle, error)
            if handle.error is None:
                with self._drive:
                    self._talk.fail(why)
            raise HorovodInternalError(handle.error or self.failure) from error
        finally:
            with self._talk.lock:
                self._talk.lane.end(handle, is_done=is_done)
        return handle

    def close(self) -> None:
        """Say goodbye. Whoever still needs this rank fails at once. Does nothing the second time."""
        with self._state:
            if self._talk.is_closed:
                return
            self._talk.is_closed = True
            self.lane.follow(())
            self._talk.wake.set()
        with self._drive:
            self._talk.hang_up()
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self._talk.wake.close()
        self._backend.close()

    @property
    def failure(self) -> Optional[str]:
        """Why the gang is broken; ``None`` while it is whole."""
        return self._talk.failure

    def _check(self) -> None:
        if self.failure is not None:
            raise HorovodInternalError(self.failure)
        if self._talk.is_closed:
            raise HorovodInternalError(CLOSED)

    # Waiting

    def _wait_for_answer(self, handle: Handle) -> None:
        with self._state:
            self._waiters += 1
            if self._drive.locked():
                self._talk.wake.set()  # the background drives: it shall let go
        try:
            while not handle.is_answered:
                if not self._try_to_pump(_SLICE_S, unless=handle):
                    with self._state:
                        if not handle.is_answered and self._drive.locked():
                            self._state.wait(_SLICE_S / 10)
        finally:
            with self._state:
                self._waiters -= 1
                if self._talk.waiting:
                    self._talk.wake.set()

    def _wait_for_end(self, handle: Handle, batch: Running) -> None:
        if batch.wait(_NOTICE_S):
            return
        with self._state:
            if self._talk.lane.notice(handle):
                self._talk.wake.set()
        while True:
            self._try_to_pump(0.0)
            if handle.error is not None:
                raise HorovodInternalError(handle.error)
            if self.failure is not None:
                self._backend.abort()
                raise HorovodInternalError(self.failure)
            if batch.wait(_SLICE_S):
                return

    def _why(self, handle: Handle, error: BaseException) -> str:
        """The reason of a failed operation: rather the coordinator's than the wire's, if it comes within a moment."""
        with self._state:
            self._talk.lane.notice(handle)
        end_s = time.monotonic() + 1.0
        while self.failure is None and handle.error is None and time.monotonic() < end_s:
            self._try_to_pump(0.05, patience_s=0.05)
        return self.failure or f"{handle.request.kind} {handle.request.name!r} failed: {first_line(error)}"

    # Driving

    def _try_to_pump(self, timeout_s: float, *, patience_s: float = 0.0, unless: Optional[Handle] = None) -> bool:
        """Drive one round, ``unless`` that is answered by then. ``False``: another thread does, for ``patience_s``."""
        if not self._drive.acquire(timeout=patience_s):
            return False
        try:
            if unless is None or not unless.is_answered:
                self._talk.pump(timeout_s)
        finally:
            self._drive.release()
        with self._state:
            self._state.notify_all()
        return True

    def _run(self) -> None:
        talk = self._talk
        while not talk.is_closed:
            with self._state:
                is_needed = not self._waiters and (talk.must_read or bool(talk.waiting))
            if self.failure is not None:
                self._rest(is_driven=True)
            elif is_needed:
                self._try_to_pump(_SLICE_S, patience_s=_SLICE_S)
            else:
                self._rest(is_driven=bool(self._waiters))

    def _rest(self, *, is_driven: bool) -> None:
        """Sleep until there is something to drive; look after peers that hang up, and for stalls, now and then."""
        links = dict(self._talk.links) if self.failure is None else {}
        found, is_woken = self._talk.listen(links, _HANG_UP, _LOOK_S)
        if is_woken and not found:
            return
        if self.failure is None and (found or not is_driven):
            self._try_to_pump(0.0, patience_s=_SLICE_S)
