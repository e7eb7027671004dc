"""Graceful shutdown: a server ends without losing a request.

While *draining*, the readiness probe fails, so that load balancers send no more requests; requests that arrive
nevertheless are answered, and their connections are closed after the answer. Then it is *stopping*: the server accepts
no new connection, streams end in good order, and requests in flight are finished.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn
from starlette.requests import HTTPConnection

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class GracefulShutdown:
    """``is_draining`` turns true once the process is asked to end, ``is_stopping`` when streams have to end."""

    def __init__(self, *, drain_s: float = 0.0) -> None:
        self.drain_s = drain_s
        self.is_draining = False
        self.is_stopping = False

    def begin(self) -> None:
        """Begin to drain; without a drain time also stop."""
        self.is_draining = True
        if self.drain_s <= 0:
            self.is_stopping = True

    def watch_signals(self) -> None:
        """Handle SIGTERM and SIGINT before uvicorn's own handlers. Does nothing outside of the main thread.

        Uvicorn waits for its open responses *before* it runs the application's shutdown hook, which would be too late.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if not callable(before):
                continue

            def handle(signum: int, frame: FrameType | None, *, next_handler: object = before) -> None:
                self.begin()
                if callable(next_handler):
                    next_handler(signum, frame)

            signal.signal(number, handle)


def shutdown_of(connection: HTTPConnection) -> GracefulShutdown:
    shutdown: GracefulShutdown = connection.app.state.shutdown
    return shutdown


class DrainingServer(uvicorn.Server):
    """Serves on for ``shutdown.drain_s`` seconds after the first signal; a second signal ends that. Exit code 0.

    ``end_streams`` is called when streams have to end that another process serves.
    """

    def __init__(self, config: uvicorn.Config, shutdown: GracefulShutdown, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams
        self._shutdown = shutdown
        self._stop_at_s: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 (the base class's signature)
        # Not the base class's handler: it would raise the signal again at the end, and the process would die of it.
        if self._stop_at_s is None:
            self._stop_at_s = time.monotonic() + self._shutdown.drain_s
        elif self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        else:
            self._stop_at_s = time.monotonic()

    async def on_tick(self, counter: int) -> bool:
        """Uvicorn calls this ten times a second; true: stop serving."""
        if self._stop_at_s is not None and time.monotonic() >= self._stop_at_s:
            self._shutdown.is_stopping = True
            self._end_streams()
            self.should_exit = True
        return await super().on_tick(counter)
