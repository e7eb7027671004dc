"""Celery's messages within one process, for the embedded mode: kombu's memory transport without its polling."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty
from time import monotonic
from typing import Any, Final

from kombu.transport import memory

# What an application gives as its broker's transport.
TRANSPORT: Final = f"{__name__}:WaitingTransport"


class _NotifyingChannel(memory.Channel):
    """Notifies its process's consumer of each message, and of each one that makes room for another."""

    # Of all channels, as the queues are.
    changed = threading.Event()

    def _put(self, queue: str, message: Any, **options: Any) -> None:
        super()._put(queue, message, **options)  # type: ignore[no-untyped-call]  # kombu has few types
        self.changed.set()

    def basic_ack(self, *arguments: Any, **options: Any) -> None:
        super().basic_ack(*arguments, **options)  # type: ignore[no-untyped-call]
        self.changed.set()

    def basic_reject(self, *arguments: Any, **options: Any) -> None:
        super().basic_reject(*arguments, **options)  # type: ignore[no-untyped-call]
        self.changed.set()


class WaitingTransport(memory.Transport):
    """Waits for messages; kombu's own looks at all queues again and again, two thirds of an idle scheduler's work."""

    Channel = _NotifyingChannel

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:  # noqa: ARG002
        """Deliver one message.

        Raises:
            TimeoutError: none came within ``timeout`` seconds.
        """
        deliver: Callable[..., None] = self._deliver
        until = None if timeout is None else monotonic() + timeout
        while True:
            # Before the look: a message that comes after it ends the wait.
            self.Channel.changed.clear()
            try:
                self.cycle.get(deliver, timeout=timeout)  # type: ignore[union-attr]
            except Empty:
                remaining = None if until is None else until - monotonic()
                if (remaining is not None and remaining <= 0) or not self.Channel.changed.wait(remaining):
                    raise TimeoutError from None
            else:
                return
