"""Operations between the engine and a framework's backend: batches that were started, and handles to wait for them."""

from __future__ import annotations

import threading
from typing import Any, Optional, Protocol, Sequence

from trainmaster_train.horovod.controller.messages import CollectiveRequest, CollectiveResponse


class InFlightOperation(Protocol):
    """An operation that was started and will end."""

    def is_done(self) -> bool: ...

    def wait(self, timeout_s: float) -> bool:
        """Wait; returns whether it is done. Raises ``RuntimeError`` or ``OSError`` if it failed."""
        ...


class OperationBatch(InFlightOperation, Protocol):
    """Operations that were started together."""

    def finish(self) -> None:
        """Deliver the results. Called once, after the batch is done."""
        ...


class Backend(Protocol):
    # Whether it can run operations on the fast path (response_cache.py) concurrently with all others.
    has_fast_path: bool

    def start(self, response: CollectiveResponse, entries: Sequence[Any], members: Sequence[int]) -> OperationBatch:
        """Start an operation. ``entries``: the tensor entry of each name; ``None`` on a rank that joined."""
        ...

    def abort(self) -> None:
        """Make all running operations fail soon."""
        ...

    def abort_fast_path(self) -> None:
        """The same for the fast path alone."""
        ...

    def close(self) -> None: ...


class Handle:
    """One submitted operation; :meth:`Engine.wait` gives its result."""

    __slots__ = ("batch", "entry", "error", "request", "result", "submitted_s")

    def __init__(self, request: CollectiveRequest, entry: Any, submitted_s: float) -> None:
        self.request = request
        self.entry = entry
        self.submitted_s = submitted_s
        self.batch: Optional[InFlightOperation] = None
        self.error: Optional[str] = None
        self.result = -1

    @property
    def is_answered(self) -> bool:
        return self.batch is not None or self.error is not None


class StartedBatch:
    """A batch that the first waiting thread finishes."""

    __slots__ = ("_batch", "_is_finished", "_lock")

    def __init__(self, batch: OperationBatch) -> None:
        self._batch = batch
        self._lock = threading.Lock()
        self._is_finished = False

    def is_done(self) -> bool:
        return self._is_finished or self._batch.is_done()

    def wait(self, timeout_s: float) -> bool:
        if not self._is_finished and not self._batch.wait(timeout_s):
            return False
        with self._lock:
            if not self._is_finished:
                self._batch.finish()
                self._is_finished = True
        return True
