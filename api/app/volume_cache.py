"""A cache of all volumes, read again every few seconds: they change rarely, and every submission needs them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Volume

VOLUME_TTL: Final = timedelta(seconds=3)


@dataclass(frozen=True, slots=True)
class CachedVolume:
    name: str
    root: str | None
    is_read_only: bool


class VolumeCache:
    def __init__(self, sessions: SessionFactory) -> None:
        self._sessions = sessions
        self._lock = threading.Lock()
        self._volumes: Mapping[str, CachedVolume] = {}
        self._until: datetime | None = None

    def find(self, name: str, now: datetime) -> CachedVolume | None:
        """The volume of this name. A removed volume may be found for ``VOLUME_TTL`` more; a new one is found at
        once.
        """
        with self._lock:
            if self._until is None or self._until <= now or name not in self._volumes:
                with unit_of_work(self._sessions, read_only=True) as session:
                    rows = session.execute(select(Volume.name, Volume.root, Volume.is_read_only)).all()
                self._volumes = {row.name: CachedVolume(row.name, row.root, row.is_read_only) for row in rows}
                self._until = now + VOLUME_TTL
            return self._volumes.get(name)

    def names(self) -> list[str]:
        return sorted(self._volumes)
