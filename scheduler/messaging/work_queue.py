"""The work queue of one process: pending messages are deduplicated, keys in flight are never worked on twice at once.

The parts are those of a Kubernetes work queue: a set of keys in flight that marks a key requested meanwhile as dirty
(:class:`InFlight`, and :class:`SingleFlight` for work without a key), a set of pending messages
(:class:`MessageDeduplicator`) and a queue that hands out batches to a few workers (:class:`BatchQueue`). Long work
rests between its runs (:class:`DutyCycle`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

import structlog

log = structlog.get_logger(__name__)
_Key = TypeVar("_Key", bound=Hashable)


class InFlight(Generic[_Key]):
    """Keys that a thread of this process works on. Thread-safe; leases keep other processes away, not this set.

    A thread that requests a key in flight does not wait: the key is marked dirty, and the thread that finishes it
    learns that one more run is due.
    """

    def __init__(self) -> None:
        self._active: set[_Key] = set()
        self._dirty: set[_Key] = set()
        self._lock = threading.Lock()

    def start(self, key: _Key) -> bool:
        """True: the caller works on ``key`` now and must :meth:`finish` it. False: another thread does."""
        with self._lock:
            if key in self._active:
                self._dirty.add(key)
                return False
            self._active.add(key)
            return True

    def finish(self, key: _Key) -> bool:
        """Whether the key became dirty meanwhile: one more run is due."""
        with self._lock:
            self._active.discard(key)
            return self._take_dirty(key)

    def restart(self, key: _Key) -> bool:
        """Like :meth:`finish`, but a dirty key stays in flight, and the caller runs it once more."""
        with self._lock:
            is_dirty = self._take_dirty(key)
            if not is_dirty:
                self._active.discard(key)
            return is_dirty

    def _take_dirty(self, key: _Key) -> bool:
        is_dirty = key in self._dirty
        self._dirty.discard(key)
        return is_dirty


class SingleFlight:
    """Runs one piece of work at a time; calls during a run return at once and cause exactly one more run together."""

    def __init__(self) -> None:
        self._inflight: InFlight[None] = InFlight()

    def run(self, work: Callable[[], None]) -> None:
        """Raises what ``work`` raises; the runs that were requested meanwhile are dropped then."""
        if not self._inflight.start(None):
            return
        try:
            work()
            while self._inflight.restart(None):
                work()
        except BaseException:
            self._inflight.finish(None)
            raise


class MessageDeduplicator:
    """Messages that wait in this process's own queue, so that an equal one is not sent again. Thread-safe.

    Args:
        is_local: whether this process alone consumes what it sends. With a shared broker another process may consume
            the message without this one learning of it: then every message is sent.
    """

    def __init__(self, *, is_local: bool) -> None:
        self._is_local = is_local
        self._pending: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def add(self, topic: str, key: str) -> bool:
        """True when the message has to be sent; false when an equal one is pending."""
        if not self._is_local:
            return True
        with self._lock:
            if (topic, key) in self._pending:
                return False
            self._pending.add((topic, key))
            return True

    def discard(self, topic: str, key: str) -> None:
        """The message is consumed. Called before the work: a message sent during the work may carry newer
        information.
        """
        with self._lock:
            self._pending.discard((topic, key))


class BatchQueue:
    """Hands single keys to its workers while few are pending, and batches while they pile up. Thread-safe.

    Args:
        work: called with the pending keys, in their order.
        workers: how many calls of ``work`` run at once. While so many run, :meth:`run` only leaves its key to them.
        batch_size: how many keys one call is given at most.
        stuck_after_s: a call that takes longer no longer counts as a worker: what it waits for may never come. A
            replacement starts in a thread of its own, since the thread that brings the key may be the last one that
            consumes messages.
        max_replacements: how many replacements run at most.
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
        self._since: dict[object, float] = {}  # worker -> when it took its batch
        self._lock = threading.Lock()

    def run(self, key: str) -> None:
        """Work on ``key``, and on all keys that other threads add meanwhile; or leave it to the workers that run.

        Raises:
            Exception: the first exception of ``work``, once no key is left.
        """
        worker = object()
        with self._lock:
            self._pending[key] = None
            if self._active_workers() >= self._workers or len(self._since) >= self._workers + self._max_replacements:
                return
            self._since[worker] = self._clock()
            is_replacement = len(self._since) > self._workers
        if is_replacement:
            log.warning("batch_queue.worker_stuck", workers=self._workers, stuck_after_s=self._stuck_after_s)
            threading.Thread(target=self._run_in_thread, args=(worker,), name="batch-queue", daemon=True).start()
        else:
            self._run(worker)

    def _run_in_thread(self, worker: object) -> None:
        try:
            self._run(worker)
        except Exception as error:  # noqa: BLE001 (the edge of a thread: no caller sees it)
            log.warning("batch_queue.failed", why=repr(error))

    def _run(self, worker: object) -> None:
        failure: Exception | None = None
        while keys := self._take(worker):
            try:
                self._work(keys)
            except Exception as error:  # noqa: BLE001 (raised below: the other keys have no other worker)
                failure = failure or error
            except BaseException:
                with self._lock:
                    del self._since[worker]
                raise
        if failure is not None:
            raise failure

    def _active_workers(self) -> int:
        """Workers that are not stuck."""
        now_s = self._clock()
        return sum(now_s - since_s < self._stuck_after_s for since_s in self._since.values())

    def _take(self, worker: object) -> list[str]:
        with self._lock:
            del self._since[worker]
            keys = list(self._pending)[: self._batch_size]
            if not keys or self._active_workers() >= self._workers:
                # Under the same lock as the decision in ``run``: no key is left to a worker that is about to end.
                return []
            for key in keys:
                del self._pending[key]
            self._since[worker] = self._clock()
            return keys


# Seconds. Shorter runs delay nothing else.
_MIN_RUN_S: Final = 0.05
# Seconds. However long a run took, a user may wait for the next one.
_MAX_REST_S: Final = 1.0


class DutyCycle:
    """After a long run the next one is due once as much time has passed again, but a second at most.

    Ticks in immediate succession each start the few jobs for which room has become free meanwhile. With a rest between
    them, the threads that start and end jobs get the interpreter: of a long queue of short jobs twice as many have
    ended by the next tick, and half as many ticks are made.

    For one thread. ``clock_s``: seconds that never go back.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._due_s = 0.0

    @property
    def rest_s(self) -> float:
        """Seconds until the next run is due; 0: it is due."""
        return max(0.0, self._due_s - self._clock_s())

    @contextmanager
    def run(self) -> Iterator[None]:
        """Around a run, whether it fails or not."""
        began_s = self._clock_s()
        try:
            yield
        finally:
            ended_s = self._clock_s()
            took_s = ended_s - began_s
            self._due_s = ended_s + min(took_s, _MAX_REST_S) if took_s >= _MIN_RUN_S else 0.0
