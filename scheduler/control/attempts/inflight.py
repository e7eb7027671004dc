"""What one process has in hand: each thing by one of its threads at a time."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

_Name = TypeVar("_Name", bound=Hashable)


class InFlight(Generic[_Name]):
    """Safe for many threads. Other processes are kept away by leases, not by this.

    Who comes while another thread is at it does not wait: that it was asked for is remembered, so that what it came for
    is not overlooked, and told to who leaves.
    """

    def __init__(self) -> None:
        self._active: set[_Name] = set()
        self._asked_again: set[_Name] = set()
        self._lock = threading.Lock()

    def enter(self, name: _Name) -> bool:
        """Whether it is ours now; then it must be left."""
        with self._lock:
            if name in self._active:
                self._asked_again.add(name)
                return False
            self._active.add(name)
            return True

    def leave(self, name: _Name) -> bool:
        """Whether somebody asked for it meanwhile: it is to be looked at once more."""
        with self._lock:
            self._active.discard(name)
            is_asked = name in self._asked_again
            self._asked_again.discard(name)
            return is_asked
