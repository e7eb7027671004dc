"""Long answers end promptly when the server goes down, instead of holding it until its patience ends."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Closing:
    """``is_set`` turns true once the process is asked to end. Streams look at it between two sends."""

    def __init__(self) -> None:
        self.is_set = False

    def watch_signals(self) -> None:
        """Hear of SIGTERM and SIGINT before whoever handles them now (uvicorn); nothing outside of the main thread.

        A server waits for its open answers *before* it tells the application to shut down, so the shutdown hook
        would come too late.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.getsignal(number)
            if not callable(before):
                continue

            def heard(signum: int, frame: FrameType | None, *, then: object = before) -> None:
                self.is_set = True
                if callable(then):
                    then(signum, frame)

            signal.signal(number, heard)
