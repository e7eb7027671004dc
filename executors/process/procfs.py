"""Processes from /proc, as far as this driver needs them. The runtime has its own module: it stands alone in any
image.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

# Set by the runtime in the environment of all that it starts.
MARK_VARIABLE: Final = "TRAINMASTER_REPLICA"


def boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def start_ticks(pid: int) -> int | None:
    """When ``pid`` was started, in clock ticks from boot; ``None`` when there is none, or only its zombie."""
    text = _read(f"/proc/{pid}/stat")
    if not text:
        return None
    # The name in brackets may hold anything, blanks and brackets too.
    fields = text[text.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def send(pid: int, ticks: int, number: int) -> bool:
    """Signal the process that was started at ``ticks``, never a later process with the same pid."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if start_ticks(pid) != ticks:
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)


def marked(mark: str) -> list[tuple[int, int]]:
    """``(pid, start ticks)`` of all live processes whose environment carries ``mark``."""
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        name = entry.name
        if name.isdigit() and wanted in _read(f"/proc/{name}/environ").split(b"\0"):
            ticks = start_ticks(int(name))
            if ticks is not None:
                found.append((int(name), ticks))
    return found


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
