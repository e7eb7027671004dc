"""One supervised process: start, health, restart with backoff."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
# A log is rotated beyond this size; its older half stays in <name>.log.1.
LOG_LIMIT_BYTES: Final = 64 * 2**20
_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_LAST_S: Final = 5.0
# After living this long, the next failure starts from the first backoff.
_HEALTHY_AFTER_S: Final = 30.0

_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    # Otherwise a supervisor killed with -9 would leave an API that holds the port and an orphaned scheduler.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass(slots=True)
class Child:
    """A Python module run as a process of its own, its output appended to ``log_path``."""

    name: str
    arguments: Sequence[str]  # after the interpreter, such as ("-m", "api")
    env: Mapping[str, str]
    log_path: Path
    pass_fds: tuple[int, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    next_start_s: float = 0.0
    backoff_s: float = field(default=_BACKOFF_FIRST_S)
    restarts: int = -1

    def start(self, now_s: float) -> None:
        """Start it; the caller has checked that it does not run."""
        self.rotate_log()
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.arguments],
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=self.pass_fds,
                # A terminal's Ctrl-C is for the supervisor alone, which stops the others in order.
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 (the supervisor has one thread)
            )
        self.started_s = now_s
        self.restarts += 1

    def poll(self, now_s: float) -> str | None:
        """Restart it when it has died and its backoff is over. Returns a log line if something happened."""
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return None
            self.process = None
            if now_s - self.started_s > _HEALTHY_AFTER_S:
                self.backoff_s = _BACKOFF_FIRST_S
            self.next_start_s = now_s + self.backoff_s
            line = f"{self.name} ended with {code}; starting again in {self.backoff_s:.1f} s (see {self.log_path})"
            self.backoff_s = min(self.backoff_s * 2, _BACKOFF_LAST_S)
            return line
        if now_s >= self.next_start_s:
            self.start(now_s)
            return f"{self.name} started as process {self.pid}"
        return None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    def signal(self, number: int) -> None:
        """Send a signal; harmless if the process is gone."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within ``timeout_s``."""
        if self.process is None:
            return True
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def rotate_log(self) -> None:
        """Keep the log bounded; safe while the child runs."""
        rotate(self.log_path)


def rotate(path: Path) -> None:
    """Truncate a log that has grown too long; its newer half stays in ``<name>.log.1``.

    Writers must append: then truncation is safe at any time.
    """
    try:
        if path.stat().st_size < LOG_LIMIT_BYTES:
            return
        path.with_suffix(".log.1").write_bytes(path.read_bytes()[-LOG_LIMIT_BYTES // 2 :])
        os.truncate(path, 0)
    except OSError:
        return  # a full disk must not stop the platform; the next turn tries again
