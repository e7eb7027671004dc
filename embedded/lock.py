"""At most one platform per data folder, even after a crash."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from core import file_locks
from embedded.errors import AlreadyRuns, CannotStart

# A platform ends its processes by then, and gives the lock back.
STOP_WITHIN_S: Final = 15.0


@dataclass(slots=True)
class HomeLock:
    """An advisory lock on the data folder. The kernel releases it when the process dies, so that none is left stale."""

    path: Path
    fd: int

    @classmethod
    def take(cls, home: Path) -> HomeLock:
        """Raises ``AlreadyRuns`` if another platform holds the folder, ``CannotStart`` if it is not writable."""
        path = home / "run" / "up.lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CannotStart(
                f"The data folder {home} cannot be written ({error.strerror}); choose another one with --home."
            ) from error
        if not file_locks.try_lock(fd):
            os.close(fd)
            running = read_up_file(home)
            where = f" at {running['url']} (process {running['pid']})" if running else ""
            raise AlreadyRuns(
                f"A platform already runs on {home}{where}; use it, stop it with `trainmaster down`, "
                f"or choose another folder with --home."
            )
        return cls(path, fd)

    def release(self) -> None:
        os.close(self.fd)


def is_locked(home: Path) -> bool:
    """Whether a platform runs on ``home``."""
    try:
        return file_locks.is_locked(home / "run" / "up.lock")
    except OSError:
        return False


def read_up_file(home: Path) -> dict[str, Any] | None:
    """The running platform's ``url``, ``pid``, ``version``, ``login_url``."""
    try:
        value = json.loads((home / "up.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) and {"url", "pid"} <= value.keys() else None


def write_up_file(home: Path, value: dict[str, Any]) -> None:
    """Atomic. Readable by the owner alone: it holds a login link."""
    temporary = home / "up.json.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as stream:
        json.dump(value, stream)
    temporary.replace(home / "up.json")
