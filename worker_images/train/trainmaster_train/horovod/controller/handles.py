"""What the engine and a framework's tensors meet in: operations that were started, and handles that wait for them."""

from __future__ import annotations

import threading
from typing import Any, Optional, Protocol, Sequence

from trainmaster_train.horovod.controller.messages import CollectiveRequest, CollectiveResponse


class InFlightOperation(Protocol):
    """What was started and comes to an end."""

    def is_done(self) -> bool: ...

    def wait(self, timeout_s: float) -> bool:
        """Whether it is done. Raises ``RuntimeError`` or ``OSError`` if it failed."""
        ...


class OperationBatch(InFlightOperation, Protocol):
    """Operations that were started together."""

    def finish(self) -> None:
        """Put the results where the callers find them. Called once, after it is done."""
        ...


class Backend(Protocol):
    # Whether it can run the operations of a response for the lane (rhythm.py) beside all others.
    has_fast_path: bool

    def start(self, response: CollectiveResponse, entries: Sequence[Any], members: Sequence[int]) -> OperationBatch:
        """Start an operation. ``jobs``: what was submitted for each name; ``None`` on a rank that joined."""
        ...

    def abort(self) -> None:
        """Let whatever runs fail soon."""
        ...

    def abort_fast_path(self) -> None:
        """The same for the lane alone."""
        ...

    def close(self) -> None: ...


class Handle:
    """One submitted operation; :meth:`Engine.wait` gives its result."""

    __slots__ = ("batch", "error", "job", "last", "request", "submitted_s")

    def __init__(self, request: CollectiveRequest, entry: Any, submitted_s: float) -> None:
        self.request = request
        self.entry = entry
        self.submitted_s = submitted_s
        self.batch: Optional[InFlightOperation] = None
        self.error: Optional[str] = None
        self..result = -1

    @property
    def is_answered(self) -> bool:
        return self.batch is not None or self.error is not None


class StartedBatch:
    """A batch that is finished by the first who waits for it."""

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
