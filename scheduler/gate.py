"""Many rings, one run: a message that says what another waiting one says already is dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
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


class Crowd:
    """Works on keys one by one while few come, and on many at once while they pile up. Safe for threads.

    Args:
        work: called with the keys that wait, in their order.
        hands: how many calls of it there are at once. Whoever comes meanwhile leaves the key to them.
        at_once: how many keys a call is given at most.
    """

    def __init__(self, work: Callable[[Sequence[str]], None], *, hands: int, at_once: int) -> None:
        self._work, self._free, self._at_once = work, hands, at_once
        self._waiting: dict[str, None] = {}
        self._lock = threading.Lock()

    def run(self, key: str) -> None:
        """Work on ``key``, and on whatever others bring meanwhile; or leave it to those who work already.

        Raises:
            Exception: what ``work`` raised first, when nothing is left to do.
        """
        with self._lock:
            self._waiting[key] = None
            if not self._free:
                return
            self._free -= 1
        failure: Exception | None = None
        while keys := self._take():
            try:
                self._work(keys)
            except Exception as error:  # noqa: BLE001 (raised below; nobody else comes for the other keys)
                failure = failure or error
            except BaseException:
                with self._lock:
                    self._free += 1
                raise
        if failure is not None:
            raise failure

    def _take(self) -> list[str]:
        with self._lock:
            keys = list(self._waiting)[: self._at_once]
            for key in keys:
                del self._waiting[key]
            if not keys:
                self._free += 1  # in the same moment in which nothing waits: nobody leaves a key to one who goes
            return keys
