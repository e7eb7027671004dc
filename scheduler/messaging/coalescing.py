"""Many rings, one run: a message that says what another waiting one says already is dropped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog

log = structlog.get_logger(__name__)


class PendingDeduplicator:
    """Which messages wait in this process's own queue. Safe for threads.

    Args:
        is_local: whether this process alone works on what it sends. With a shared broker another one may do so, and
            nobody here would learn of it: then every message is sent.
    """

    def __init__(self, *, is_local: bool) -> None:
        self._is_local = is_local
        self._pending: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def add(self, topic: str, key: str) -> bool:
        """True when the message has to be sent; false when an equal one waits already."""
        if not self._is_local:
            return True
        with self._lock:
            if (topic, key) in self._pending:
                return False
            self._pending.add((topic, key))
            return True

    def discard(self, topic: str, key: str) -> None:
        """The message is being worked on: one that comes from now on may know more."""
        with self._lock:
            self._pending.discard((topic, key))


class SingleFlight:
    """Runs one thing at a time; a call during a run returns at once and makes exactly one more run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_running = False
        self._is_requested_again = False

    def run(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._is_running:
                self._is_requested_again = True
                return
            self._is_running = True
        while True:
            with self._reset_on_error():
                work()
            with self._lock:
                if not self._is_requested_again:
                    self._is_running = False
                    return
                self._is_requested_again = False

    @contextmanager
    def _reset_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with self._lock:
                self._is_running = self._is_requested_again = False
            raise


class BatchQueue:
    """Works on keys one by one while few come, and on many at once while they pile up. Safe for threads.

    Args:
        work: called with the keys that wait, in their order.
        hands: how many calls of it there are at once. Whoever comes meanwhile leaves the key to them.
        at_once: how many keys a call is given at most.
        silent_s: a call that takes longer is not counted any more: what it waits for may never come. In its place another
            one begins, in a thread of its own, for whoever brings a key may be the last thread that takes messages.
        extra: how many such calls there are at most.
    """

    def __init__(
        self,
        work: Callable[[Sequence[str]], None],
        *,
        workers: int,
        batch_size: int,
        stuck_after_s: float = 60.0,
        max_replacements: int = 3,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work, self._workers, self._batch_size = work, workers, batch_size
        self._stuck_after_s, self._max_replacements, self._clock = stuck_after_s, max_replacements, clock
        self._pending: dict[str, None] = {}
        self._since: dict[object, float] = {}  # of each hand: when it took the keys that it works on
        self._lock = threading.Lock()

    def run(self, key: str) -> None:
        """Work on ``key``, and on whatever others bring meanwhile; or leave it to those who work already.

        Raises:
            Exception: what ``work`` raised first, when nothing is left to do.
        """
        worker = object()
        with self._lock:
            self._pending[key] = None
            if self._active_workers() >= self._workers or len(self._since) >= self._workers + self._max_replacements:
                return
            self._since[worker] = self._clock()
            is_replacement = len(self._since) > self._workers
        if is_replacement:
            log.warning("crowd.silent", workers=self._workers, stuck_after_s=self._stuck_after_s)
            threading.Thread(target=self._run_in_thread, args=(worker,), name="crowd", daemon=True).start()
        else:
            self._run(worker)

    def _run_in_thread(self, worker: object) -> None:
        try:
            self._run(worker)
        except Exception as error:  # noqa: BLE001 (at the edge: nobody waits for it)
            log.warning("crowd.failed", why=repr(error))

    def _run(self, worker: object) -> None:
        failure: Exception | None = None
        while keys := self._take(worker):
            try:
                self._work(keys)
            except Exception as error:  # noqa: BLE001 (raised below; nobody else comes for the other keys)
                failure = failure or error
            except BaseException:
                with self._lock:
                    del self._since[worker]
                raise
        if failure is not None:
            raise failure

    def _active_workers(self) -> int:
        """How many hands are not silent."""
        now_s = self._clock()
        return sum(now_s - since_s < self._stuck_after_s for since_s in self._since.values())

    def _take(self, worker: object) -> list[str]:
        with self._lock:
            del self._since[worker]
            keys = list(self._pending)[: self._batch_size]
            if not keys or self._active_workers() >= self._workers:
                # In the same moment in which nothing waits, or enough others go on: nobody leaves a key to one who goes.
                return []
            for key in keys:
                del self._pending[key]
            self._since[worker] = self._clock()
            return keys
