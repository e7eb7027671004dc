"""Figures of checkpoints that were computed before, on the disk: lines of JSON by the state of the files.

Only a help: what is missing or damaged is computed again, and any of it may be deleted.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

log = structlog.get_logger(__name__)

_ROOM_BYTES: Final = 256 * 2**20
_IN_MEMORY: Final = 4


class Figures:
    """``get`` and ``add`` by a key that changes with the files. Safe for threads and, since lines are only added, for
    processes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._read: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def get(self, key: str) -> Mapping[str, Any]:
        """What is known, by the name of the tensor."""
        name = _name(key)
        with self._lock:
            if name not in self._read:
                self._read[name] = self._load(name)
                if len(self._read) > _IN_MEMORY:
                    self._read.popitem(last=False)
            self._read.move_to_end(name)
            return dict(self._read[name])

    def add(self, key: str, items: list[dict[str, Any]]) -> None:
        name = _name(key)
        with self._lock:
            if name in self._read:
                self._read[name] |= {item["name"]: item for item in items}
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                path = self._folder / name
                if not path.exists():
                    self._make_room()
                with path.open("ab") as file:
                    file.write(b"".join(orjson.dumps(item, option=orjson.OPT_APPEND_NEWLINE) for item in items))
            except OSError as error:
                log.warning("figures.not_kept", why=str(error))

    def _load(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        try:
            with (self._folder / name).open("rb") as file:
                for line in file:
                    try:
                        item = orjson.loads(line)
                        found[item["name"]] = item
                    except (ValueError, LookupError, TypeError):
                        continue  # cut short by a crash
        except OSError:
            pass
        return found

    def _make_room(self) -> None:
        files = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(self._folder))
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= _ROOM_BYTES:
                return
            Path(path).unlink(missing_ok=True)
            total -= size


def _name(key: str) -> str:
    return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=20).hexdigest() + ".jsonl"
