"""The exit hook's notes: which processes have finished their work, and with which code."""

from __future__ import annotations

import os

UNKNOWN_CODE = -1  # of a process that hung at exit and noted none


class ExitNotes:
    """The file that ``hooks/sitecustomize.py`` appends ``<pid> <code or ?>`` to; none before :meth:`follow`."""

    def __init__(self) -> None:
        self._path = ""
        self._offset = 0
        self._codes: dict[int, int | None] = {}
        self._finished_at: dict[int, float] = {}

    def follow(self, path: str) -> None:
        """Create the file if it is missing, and read it from now on. Raises ``OSError``."""
        self._path = path
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))

    def check(self, now: float) -> None:
        """Read what is new. ``now`` is monotonic."""
        try:
            if os.stat(self._path).st_size <= self._offset:
                return
            with open(self._path, "rb") as stream:
                stream.seek(self._offset)
                for line in stream:
                    if not line.endswith(b"\n"):
                        return
                    self._offset += len(line)
                    words = line.split()
                    if len(words) == 2 and words[0].isdigit():
                        pid = int(words[0])
                        self._codes[pid] = int(words[1]) if words[1].isdigit() else None
                        self._finished_at[pid] = now
        except OSError:
            return

    def has(self, pid: int) -> bool:
        return pid in self._codes

    def code(self, pid: int) -> int | None:
        return self._codes.get(pid)

    def hangs_since(self, pid: int) -> float | None:
        """When ``pid`` had finished its work; ``None`` if it has not."""
        return self._finished_at.get(pid)

    def forget(self, pid: int) -> None:
        """``pid`` is gone, and its number may come again."""
        self._codes.pop(pid, None)
        self._finished_at.pop(pid, None)

    @property
    def is_empty(self) -> bool:
        return not self._finished_at
