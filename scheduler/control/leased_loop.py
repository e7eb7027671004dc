"""The loops of the control plane: reconciling one object under its lease, and polling for work in threads of their
own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from core.domain.errors import Unavailable
from core.work_queue import InFlight
from scheduler.control import fence
from scheduler.control.context import ControlContext
from scheduler.control.fence import RenewedLease

log = structlog.get_logger(__name__)

_STOP_WITHIN_S = 5.0


class LeasedLoop:
    """Reconciles objects of one kind, each by passes under its lease. One per process and kind; thread-safe.

    Args:
        kind: names the leases (``study:<id>``).
        topic: of the wake-up for an object that was requested again while it was in flight; ``None``: none is sent, as
            the objects are polled.
        max_passes: after so many passes in a row other objects get their turn.
    """

    def __init__(self, control: ControlContext, *, kind: str, topic: str | None, max_passes: int) -> None:
        self._control = control
        self._kind = kind
        self._topic = topic
        self._max_passes = max_passes
        self._inflight: InFlight[str] = InFlight()

    def reconcile(self, object_id: str, run_pass: Callable[[RenewedLease], bool]) -> None:
        """Run passes until there is nothing more to do now. Harmless to repeat, and to call from two threads at once.

        Args:
            run_pass: loads the object, does what is due, and returns whether there may be more. It raises
                ``StaleWrite`` where another process has changed the object meanwhile: then the lease is acquired again,
                if it is free, and the next pass loads again.

        Raises:
            Unavailable: the database is away.
        """
        if not self._inflight.start(object_id):
            return
        try:
            self._run_passes(f"{self._kind}:{object_id}", run_pass)
        finally:
            if self._inflight.finish(object_id) and self._topic is not None:
                self._control.wakeup.notify(self._topic, object_id)

    def _run_passes(self, lease_name: str, run_pass: Callable[[RenewedLease], bool]) -> None:
        passes = iter(range(self._max_passes))
        for _ in passes:
            # Acquired before the object is loaded: what another process wrote under the lease is seen whole, and
            # reading a long history delays no writer.
            with fence.leased(self._control, lease_name) as lease:
                while lease is not None and run_pass(lease) and next(passes, None) is not None:
                    lease.renew()  # a pass may take seconds
                return
            # Only a stale write leads here.


class PollingWorker:
    """Threads that call ``work`` at an interval, and at once on :meth:`start` or :meth:`wake`.

    Args:
        kind: prefix of the log events.
        name: of the threads.
        work: must check :attr:`is_stopping` between pieces of work.
        every_s: the interval, in seconds: work that a dead scheduler left unfinished sends no wake-up.
    """

    def __init__(self, kind: str, name: str, work: Callable[[], None], *, threads: int, every_s: float) -> None:
        self._name, self._work = name, work
        self._postponed_event, self._failed_event = f"{kind}.postponed", f"{kind}.not_begun"
        self._count, self._every_s = threads, every_s
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.is_stopping = False

    def start(self) -> None:
        """Start the threads, unless they run, and have them work now. Returns at once."""
        self._wake.set()
        with self._lock:
            if not self._threads and not self.is_stopping:
                names = (f"{self._name}-{number}" for number in range(self._count))
                self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for name in names]
                for thread in self._threads:
                    thread.start()

    def wake(self) -> None:
        """There is more work: do not wait for the interval to end."""
        self._wake.set()

    def close(self) -> None:
        """Stop after the current piece of work; waits for some seconds at most."""
        with self._lock:
            self.is_stopping = True
            threads = list(self._threads)
        self._wake.set()
        for thread in threads:
            thread.join(_STOP_WITHIN_S)

    def _run(self) -> None:
        while not self.is_stopping:
            self._wake.clear()
            try:
                self._work()
            except Unavailable:
                log.info(self._postponed_event)
            except Exception:
                log.exception(self._failed_event)
            if not self.is_stopping:
                self._wake.wait(self._every_s)
