"""Many rings, one run: a message that says what another waiting one says already is dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Gate:
    """Which messages wait in this process's own queue. Safe for threads.

    Args:
        is_local: whether this process alone works on what it sends. With a shared broker another one may do so, and
            nobody here would learn of it: then every message is sent.
    """

    def __init__(self, *, is_local: bool) -> None:
        self._is_local = is_local
        self._waiting: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def enter(self, topic: str, key: str) -> bool:
        """True when the message has to be sent; false when an equal one waits already."""
        if not self._is_local:
            return True
        with self._lock:
            if (topic, key) in self._waiting:
                return False
            self._waiting.add((topic, key))
            return True

    def leave(self, topic: str, key: str) -> None:
        """The message is being worked on: one that comes from now on may know more."""
        with self._lock:
            self._waiting.discard((topic, key))


class Solo:
    """Runs one thing at a time; a call during a run returns at once and makes exactly one more run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_running = False
        self._is_asked = False

    def run(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._is_running:
                self._is_asked = True
                return
            self._is_running = True
        while True:
            with self._marked():
                work()
            with self._lock:
                if not self._is_asked:
                    self._is_running = False
                    return
                self._is_asked = False

    @contextmanager
    def _marked(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with self._lock:
                self._is_running = self._is_asked = False
            raise
