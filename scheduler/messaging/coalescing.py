"""Many rings, one run: a message that says what another waiting one says already is dropped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog

log = structlog.get_logger(__name__)


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
        silent_s: a call that takes longer is not counted any more: what it waits for may never come. In its place another
            one begins, in a thread of its own, for whoever brings a key may be the last thread that takes messages.
        extra: how many such calls there are at most.
    """

    def __init__(
        self,
        work: Callable[[Sequence[str]], None],
        *,
        hands: int,
        at_once: int,
        silent_s: float = 60.0,
        extra: int = 3,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work, self._hands, self._at_once = work, hands, at_once
        self._silent_s, self._extra, self._clock = silent_s, extra, clock
        self._waiting: dict[str, None] = {}
        self._since: dict[object, float] = {}  # of each hand: when it took the keys that it works on
        self._lock = threading.Lock()

    def run(self, key: str) -> None:
        """Work on ``key``, and on whatever others bring meanwhile; or leave it to those who work already.

        Raises:
            Exception: what ``work`` raised first, when nothing is left to do.
        """
        hand = object()
        with self._lock:
            self._waiting[key] = None
            if self._heard() >= self._hands or len(self._since) >= self._hands + self._extra:
                return
            self._since[hand] = self._clock()
            is_extra = len(self._since) > self._hands
        if is_extra:
            log.warning("crowd.silent", hands=self._hands, silent_s=self._silent_s)
            threading.Thread(target=self._run_aside, args=(hand,), name="crowd", daemon=True).start()
        else:
            self._run(hand)

    def _run_aside(self, hand: object) -> None:
        try:
            self._run(hand)
        except Exception as error:  # noqa: BLE001 (at the edge: nobody waits for it)
            log.warning("crowd.failed", why=repr(error))

    def _run(self, hand: object) -> None:
        failure: Exception | None = None
        while keys := self._take(hand):
            try:
                self._work(keys)
            except Exception as error:  # noqa: BLE001 (raised below; nobody else comes for the other keys)
                failure = failure or error
            except BaseException:
                with self._lock:
                    del self._since[hand]
                raise
        if failure is not None:
            raise failure

    def _heard(self) -> int:
        """How many hands are not silent."""
        now_s = self._clock()
        return sum(now_s - since_s < self._silent_s for since_s in self._since.values())

    def _take(self, hand: object) -> list[str]:
        with self._lock:
            del self._since[hand]
            keys = list(self._waiting)[: self._at_once]
            if not keys or self._heard() >= self._hands:
                # In the same moment in which nothing waits, or enough others go on: nobody leaves a key to one who goes.
                return []
            for key in keys:
                del self._waiting[key]
            self._since[hand] = self._clock()
            return keys
