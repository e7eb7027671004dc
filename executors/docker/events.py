"""Change hints: the engine's events, and status files of starting replicas. Any of them may be lost."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import structlog

from core.domain.errors import ExecutorTryAgain
from core.domain.ids import AttemptId
from executors.containers import labels
from executors.docker.engine import DockerEngine, EngineError

log = structlog.get_logger(__name__)

_EVENTS: Final = ("start", "die", "oom", "destroy", "pause", "unpause")
_AGAIN_S: Final = 2.0  # after the engine went away
# The engine has no file events: status files of starting replicas are polled at this period, in at most a fifth of the
# time.
_LOOK_S: Final = 0.1
_MAX_POLL_SHARE: Final = 0.2


class EngineEvents:
    """Listens to the engine from the first :meth:`wait` on.

    Args:
        on_death: called with the id of each container that died.
        poll_status: attempts whose starting replicas have written a new status since the last call; called while
            ``wait`` waits.
    """

    def __init__(
        self,
        engine: DockerEngine,
        instance: str,
        on_death: Callable[[str], None],
        poll_status: Callable[[], Iterable[AttemptId]],
    ) -> None:
        self._engine = engine
        self._instance = instance
        self._on_death = on_death
        self._poll_status = poll_status
        self._changed: set[AttemptId] = set()
        self._wake = threading.Condition()
        self._stream: Any = None
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    def mark_changed(self, attempt: AttemptId) -> None:
        with self._wake:
            self._changed.add(attempt)
            self._wake.notify()

    def wait(self, timeout_s: float) -> frozenset[AttemptId]:
        """Attempts that may have changed; empty at the timeout."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._listen, name="docker events", daemon=True)
            self._thread.start()
        end = time.monotonic() + timeout_s
        pause_s = _LOOK_S
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: self._changed or self._is_stopping, min(pause_s, max(0, end - time.monotonic()))
                )
                if self._changed or self._is_stopping:
                    changed, self._changed = frozenset(self._changed), set()
                    return changed
            if time.monotonic() >= end:
                return frozenset()
            begin = time.monotonic()
            with contextlib.suppress(ExecutorTryAgain, EngineError):
                for attempt in self._poll_status():
                    self.mark_changed(attempt)
            pause_s = max(_LOOK_S, (time.monotonic() - begin) / _MAX_POLL_SHARE)

    def stop(self) -> None:
        with self._wake:
            self._is_stopping = True
            self._wake.notify_all()
        stream = self._stream
        if stream is not None:
            with contextlib.suppress(Exception):
                stream.close()
        if self._thread is not None:
            self._thread.join(5.0)

    def _listen(self) -> None:
        filters = {"type": ["container"], "event": list(_EVENTS), "label": [f"{labels.INSTANCE}={self._instance}"]}
        while not self._is_stopping:
            try:
                self._stream = self._engine.events(filters)
                for event in self._stream:
                    actor = event.get("Actor") or {}
                    if event.get("Action") == "die":
                        self._on_death(str(actor.get("ID")))
                    attempt = (actor.get("Attributes") or {}).get(labels.ATTEMPT)
                    if attempt:
                        self.mark_changed(AttemptId(attempt))
            except (ExecutorTryAgain, EngineError) as away:
                log.debug("engine.away", why=str(away))
            except Exception as error:  # noqa: BLE001 - hints may fail in any way; the watch goes on without them
                log.debug("engine.events_ended", why=repr(error))
            with self._wake:
                self._wake.wait_for(lambda: self._is_stopping, _AGAIN_S)
