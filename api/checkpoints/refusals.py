"""What could not be looked into: the same files get the same answer for a while, without another look."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from core.domain.errors import CheckpointUnreadable

# Seconds: a loaded machine may have refused what a quiet one can read.
_KEPT_S: Final = 600.0
_LIMIT: Final = 1_000


class Refusals:
    """By a key that changes with the files. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, CheckpointUnreadable]] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def heeded(self, key: str) -> Iterator[None]:
        """Around a look, which may take half a minute until it is refused. Raises ``CheckpointUnreadable`` as it did."""
        with self._lock:
            known = self._kept.get(key)
        if known is not None and self._clock() < known[0]:
            raise CheckpointUnreadable(known[1].sentence, field=known[1].field)
        try:
            yield
        except CheckpointUnreadable as error:
            with self._lock:
                self._kept[key] = (self._clock() + _KEPT_S, error)
                self._kept.move_to_end(key)
                while len(self._kept) > _LIMIT:
                    self._kept.popitem(last=False)
            raise
