"""Caches in the memory of this process: expiring values, the values used last, all volumes, and
budgets.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from sqlalchemy import select

from core.db.engine import SessionFactory, unit_of_work
from core.db.repositories.budgets import spent_micros
from core.db.tables import BudgetRow, Volume, VolumeGrant

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_VOLUME_TTL: Final = timedelta(seconds=3)
_BUDGET_TTL: Final = timedelta(seconds=5)
_SPENT_TTL: Final = timedelta(seconds=60)


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


@dataclass(frozen=True, slots=True)
class CachedGrant:
    """``project_id``: ``None`` for the members of all projects. ``prefix``: empty for the whole volume."""

    project_id: str | None
    prefix: str
    is_writable: bool


@dataclass(frozen=True, slots=True)
class CachedVolume:
    name: str
    root: str | None
    is_read_only: bool
    kind: str
    grants: tuple[CachedGrant, ...] = ()


class VolumeCache:
    def __init__(self, sessions: SessionFactory) -> None:
        self._sessions = sessions
        self._lock = threading.Lock()
        self._volumes: Mapping[str, CachedVolume] = {}
        self._until: datetime | None = None

    def find(self, name: str, now: datetime) -> CachedVolume | None:
        """The volume of this name. A volume that another process removed, and grants that it changed, may be found for
        ``_VOLUME_TTL`` more; a new volume is found at once.
        """
        with self._lock:
            if name not in self._volumes:
                self._until = None
            return self._load(now).get(name)

    def all(self, now: datetime) -> list[CachedVolume]:
        """In order of name."""
        with self._lock:
            return sorted(self._load(now).values(), key=lambda volume: volume.name)

    def clear(self) -> None:
        """To be called after the commit of a change, so that it counts at once."""
        with self._lock:
            self._until = None

    def _load(self, now: datetime) -> Mapping[str, CachedVolume]:
        if self._until is None or self._until <= now:
            with unit_of_work(self._sessions, read_only=True) as session:
                rows = session.execute(
                    select(Volume.id, Volume.name, Volume.root, Volume.is_read_only, Volume.kind)
                ).all()
                grants: dict[str, list[CachedGrant]] = {row.id: [] for row in rows}
                for grant in session.scalars(select(VolumeGrant).order_by(VolumeGrant.prefix, VolumeGrant.id)):
                    cached = CachedGrant(grant.project_id, grant.prefix, grant.access == "write")
                    grants.setdefault(grant.volume_id, []).append(cached)
            self._volumes = {row.name: CachedVolume(*row[1:], tuple(grants[row.id])) for row in rows}
            self._until = now + _VOLUME_TTL
        return self._volumes


@dataclass(frozen=True, slots=True)
class CachedBudget:
    """Micros per month, and what a project has spent of them in this one."""

    micros_per_month: int
    action: str
    spent_micros: int

    @property
    def is_spent(self) -> bool:
        return self.spent_micros >= self.micros_per_month


class BudgetCache:
    """The budgets of projects. Thread-safe; what was spent is summed again once a minute, for projects that submit."""

    def __init__(self, sessions: SessionFactory) -> None:
        self._sessions = sessions
        self._lock = threading.Lock()
        self._budgets: Mapping[str, tuple[int, str]] = {}
        self._until: datetime | None = None
        self._spent = ExpiringCache[int](limit=10_000)

    def find(self, project_id: str, now: datetime) -> CachedBudget | None:
        """The project's budget; ``None``: it has none. Another process's change counts after ``_BUDGET_TTL``."""
        with self._lock:
            if self._until is None or self._until <= now:
                with unit_of_work(self._sessions, read_only=True) as session:
                    rows = session.execute(
                        select(BudgetRow.project_id, BudgetRow.micros_per_month, BudgetRow.action)
                    ).all()
                self._budgets = {row.project_id: (row.micros_per_month, row.action) for row in rows}
                self._until = now + _BUDGET_TTL
            budget = self._budgets.get(project_id)
            spent = self._spent.get(project_id, now)
        if budget is None:
            return None
        if spent is None:
            with unit_of_work(self._sessions, read_only=True) as session:
                spent = spent_micros(session, project_id, now)
            with self._lock:
                self._spent.put(project_id, spent, now + _SPENT_TTL)
        return CachedBudget(*budget, spent)

    def clear(self) -> None:
        """To be called after the commit of a change, so that it counts at once."""
        with self._lock:
            self._until = None
            self._spent.clear()
