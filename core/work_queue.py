"""The work queue of one process, as Kubernetes' controllers have one: an item waits once, however often it is
requested, is worked on by a few workers, and in batches where items pile up.

:class:`SingleFlight` is a queue of one item; :class:`InFlight` is the part for objects that a thread works on itself;
:func:`run_together` works on the items of one batch in one transaction.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from math import inf
from typing import Final, Generic, TypeVar

import structlog

log = structlog.get_logger(__name__)
_Key = TypeVar("_Key", bound=Hashable)
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")
Worker = object  # who works on a batch; only its identity counts

_STOP_WITHIN_S: Final = 20.0


class InFlight(Generic[_Key]):
    """Keys that a thread of this process works on. Thread-safe; leases keep other processes away, not this set.

    A thread that requests a key in flight does not wait: the key is marked dirty, and the thread that finishes it
    learns that one more run is due.
    """

    def __init__(self) -> None:
        self._is_dirty: dict[_Key, bool] = {}
        self._lock = threading.Lock()

    def start(self, key: _Key) -> bool:
        """True: the caller works on ``key`` now and must :meth:`finish` it. False: another thread does."""
        with self._lock:
            is_first = key not in self._is_dirty
            self._is_dirty[key] = not is_first
            return is_first

    def finish(self, key: _Key) -> bool:
        """Whether the key became dirty meanwhile: one more run is due."""
        with self._lock:
            return self._is_dirty.pop(key, False)


class WorkQueue(Generic[_Key]):
    """Hands single items to its workers while few are pending, and batches while they pile up. Thread-safe.

    Threads call :meth:`run` or :meth:`submit`; coroutines work themselves, with :meth:`add` and :meth:`take`.

    Args:
        work: called with the pending items, in their order.
        workers: how many calls of ``work`` run at once. While so many run, a new item is left to them.
        batch_size: how many items one call is given at most.
        conflict_keys: items with a common key are in different batches, in the order of their arrival.
        stuck_after_s: a call that takes longer no longer counts as a worker: what it waits for may never come. A
            replacement starts in a thread of its own, since the thread that brings the item may be the last one that
            consumes messages.
        max_replacements: how many replacements run at most.
    """

    def __init__(
        self,
        work: Callable[[Sequence[_Key]], None] = lambda _items: None,
        *,
        workers: int = 1,
        batch_size: int = 1,
        conflict_keys: Callable[[_Key], Collection[Hashable]] = lambda _item: (),
        stuck_after_s: float = inf,
        max_replacements: int = 3,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work, self._workers, self._batch_size = work, workers, batch_size
        self._conflict_keys = conflict_keys
        self._stuck_after_s, self._max_replacements, self._clock = stuck_after_s, max_replacements, clock
        self._pending: dict[_Key, None] = {}
        self._since: dict[Worker, float] = {}  # worker -> when it took its batch
        self._changed = threading.Condition()
        self._is_closed = False

    def run(self, item: _Key) -> None:
        """Work on ``item``, and on all items that other threads add meanwhile; or leave it to the workers that run.

        Raises:
            Exception: the first exception of ``work``, once no other item is left.
        """
        worker = self.add(item)
        if worker is None:
            return
        if len(self._since) > self._workers:
            log.warning("work_queue.worker_stuck", workers=self._workers, stuck_after_s=self._stuck_after_s)
            self._start_thread(worker)
        else:
            self._run(worker)

    def submit(self, item: _Key) -> None:
        """Like :meth:`run`, in a thread of the queue; returns at once."""
        worker = self.add(item)
        if worker is not None:
            self._start_thread(worker)

    def close(self) -> None:
        """Finish what is worked on, within some seconds; pending items are left to other processes."""
        with self._changed:
            self._is_closed = True
            self._pending.clear()
            self._changed.wait_for(lambda: not self._since, _STOP_WITHIN_S)

    def add(self, item: _Key) -> Worker | None:
        """The item waits now. A worker: the caller is to :meth:`take` batches for it, until it gets none."""
        with self._changed:
            if self._is_closed:
                return None
            self._pending[item] = None
            if self._active_workers() >= self._workers or len(self._since) >= self._workers + self._max_replacements:
                return None
            worker = object()
            self._since[worker] = self._clock()
            return worker

    def take(self, worker: Worker) -> list[_Key]:
        """The next batch; empty: there is no more work for this worker."""
        with self._changed:
            # Under the same lock as the decision in ``add``: no item is left to a worker that is about to end.
            del self._since[worker]
            batch = self._next_batch() if self._active_workers() < self._workers else []
            if batch:
                self._since[worker] = self._clock()
            for item in batch:
                del self._pending[item]
            self._changed.notify_all()
            return batch

    def drop_pending(self) -> list[_Key]:
        """Remove the pending items, and return them."""
        with self._changed:
            items, self._pending = list(self._pending), {}
            return items

    def _next_batch(self) -> list[_Key]:
        batch: list[_Key] = []
        keys: set[Hashable] = set()
        for item in self._pending:
            if len(batch) == self._batch_size:
                break
            item_keys = self._conflict_keys(item)
            if keys.isdisjoint(item_keys):
                batch.append(item)
            keys.update(item_keys)  # also of items left for later: none may overtake them
        return batch

    def _start_thread(self, worker: Worker) -> None:
        thread = threading.Thread(target=self._run_in_thread, args=(worker,), name="work-queue", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there is no room for a thread: the next request tries again
            self._leave(worker)

    def _run_in_thread(self, worker: Worker) -> None:
        try:
            self._run(worker)
        except Exception as error:  # noqa: BLE001 (the edge of a thread: no caller sees it)
            log.warning("work_queue.failed", why=repr(error))

    def _run(self, worker: Worker) -> None:
        failure: Exception | None = None
        while batch := self.take(worker):
            try:
                self._work(batch)
            except Exception as error:  # noqa: BLE001 (raised below: the other items have no other worker)
                failure = failure or error
            except BaseException:
                self._leave(worker)
                raise
        if failure is not None:
            raise failure

    def _leave(self, worker: Worker) -> None:
        with self._changed:
            del self._since[worker]
            self._changed.notify_all()

    def _active_workers(self) -> int:
        """Workers that are not stuck."""
        now_s = self._clock()
        return sum(now_s - since_s < self._stuck_after_s for since_s in self._since.values())


class SingleFlight:
    """One piece of work that never runs twice at once: requests during a run cause one more run together."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._queue = WorkQueue[None](lambda _: work())

    def run(self) -> None:
        """Run it here, or leave the request to the thread that runs it now. Raises what ``work`` raises."""
        self._queue.run(None)


def run_together(
    requests: Mapping[_Key, _Request],
    work: Callable[[Mapping[_Key, _Request]], Mapping[_Key, _Answer | Exception]],
    affects_all: Callable[[Exception], bool],
    before_each: Callable[[], None] = lambda: None,
) -> Mapping[_Key, _Answer | Exception]:
    """The answers to all requests, from one call of ``work``; where that fails, from a call for each request, as the
    cause may be one of them. An exception is the answer to its own request.

    ``affects_all``: whether other requests would fail in the same way: then they are not tried.
    """
    try:
        return work(requests)
    except Exception as error:  # noqa: BLE001 (an answer)
        if len(requests) == 1 or affects_all(error):
            return dict.fromkeys(requests, error)
        log.debug("batch.split", why=repr(error), requests=len(requests))
    answers: dict[_Key, _Answer | Exception] = {}
    for key, request in requests.items():
        before_each()
        try:
            answers |= work({key: request})
        except Exception as error:  # noqa: BLE001 (an answer)
            if affects_all(error):
                return dict.fromkeys(requests, error) | answers
            answers[key] = error
    return answers
