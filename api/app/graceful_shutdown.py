"""How a server goes down without losing a request.

First it is *leaving*: readiness says no, so that whoever spreads the requests sends no more of them here, while those
that come all the same are answered as ever and their connections are closed after the answer. Then it is *closed*: the
server takes no new connection, long answers end in good order, and what is being answered is finished.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Final

import uvicorn

_HEARD: Final = (signal.SIGTERM, signal.SIGINT)


class GracefulShutdown:
    """``is_leaving`` turns true once the process is asked to end, ``is_set`` when streams have to end."""

    def __init__(self, *, drain_s: float = 0.0) -> None:
        self.drain_s = drain_s
        self.is_draining = False
        self.is_stopping = False

    def begin(self) -> None:
        """The process has to end."""
        self.is_draining = True
        if self.drain_s <= 0:
            self.is_stopping = True

    def watch_signals(self) -> None:
        """Hear of SIGTERM and SIGINT before whoever handles them now (uvicorn); nothing outside of the main thread.

        A server waits for its open answers *before* it tells the application to shut down, so the shutdown hook
        would come too late.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _HEARD:
            before = signal.getsignal(number)
            if not callable(before):
                continue

            def heard(signum: int, frame: FrameType | None, *, then: object = before) -> None:
                self.begin()
                if callable(then):
                    then(signum, frame)

            signal.signal(number, heard)


class DrainingServer(uvicorn.Server):
    """Serves on for ``closing.drain_s`` after the first signal; a second one ends that. Its exit code is then 0."""

    def __init__(self, config: uvicorn.Config, shutdown: GracefulShutdown) -> None:
        super().__init__(config)
        self._shutdown = shutdown
        self._leave_at_s: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 (the signature of its kind)
        # Not the server's own: it would raise the signal again at the end and die of it.
        if self._leave_at_s is None:
            self._leave_at_s = time.monotonic() + self._shutdown.drain_s
        elif self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        else:
            self._leave_at_s = time.monotonic()

    async def on_tick(self, counter: int) -> bool:
        """Asked ten times a second whether to go down now."""
        if self._leave_at_s is not None and time.monotonic() >= self._leave_at_s:
            self._shutdown.is_stopping = True
            self.should_exit = True
        return await super().on_tick(counter)
