"""Caches in the memory of this process: of values that expire, and of the values used last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from datetime import datetime
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ExpiringCache(Generic[V]):
    """Values with a time until which they are valid. It is emptied when it has ``limit`` values."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[str, tuple[datetime, V]] = {}

    def get(self, key: str, now: datetime) -> V | None:
        cached = self._values.get(key)
        return cached[1] if cached is not None and cached[0] > now else None

    def put(self, key: str, value: V, until: datetime) -> None:
        if len(self._values) >= self._limit:
            self._values.clear()
        self._values[key] = (until, value)

    def clear(self) -> None:
        self._values.clear()


class LruCache(Generic[K, V]):
    """The ``limit`` values that were used last. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._limit:
                self._values.popitem(last=False)
