"""Processes from /proc, as far as this driver needs them, and the end of those that a killed runtime left behind.

The runtime has its own module: it stands alone in any image. :func:`kill_replica` finds processes by the control groups
of the runtime, and by the mark in the environment of each process that it started.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from core.domain.errors import ExecutorTryAgain

_LIMIT_S: Final = 5.0
_CGROUPS: Final = Path("/sys/fs/cgroup")
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
    variable = f"{MARK_VARIABLE}={mark}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        name = entry.name
        if name.isdigit() and variable in _read(f"/proc/{name}/environ").split(b"\0"):
            ticks = start_ticks(int(name))
            if ticks is not None:
                pids.append((int(name), ticks))
    return pids


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def kill_replica(path: Path, mark: str, groups: Iterable[str]) -> None:
    """Kill the processes of one replica; returns when none is left.

    Args:
        path: the replica's state folder.
        mark: value of the environment variable that its processes carry.
        groups: folders of its control groups.

    Raises:
        ExecutorTryAgain: a process does not die within five seconds.
    """
    if not _kill_all(mark, groups):
        raise ExecutorTryAgain(f"{path.name} does not end; one of its processes waits in the kernel.")


def kill_replica_once(path: Path, mark: str, groups: Iterable[str]) -> None:
    """As :func:`kill_replica`, but once per folder: every observation of a lost replica calls it. A file records the
    success.
    """
    done = path / "swept"
    if not done.exists() and _kill_all(mark, groups):
        try:
            done.touch(mode=0o600)
        except FileNotFoundError:
            pass


def _kill_all(mark: str, groups: Iterable[str]) -> bool:
    folders = [Path(group) for group in groups if Path(group).is_relative_to(_CGROUPS)]
    end = time.monotonic() + _LIMIT_S
    while True:
        for folder in folders:
            _kill_group(folder)
        survivors = marked(mark)
        for pid, ticks in survivors:
            send(pid, ticks, signal.SIGKILL)
        for folder in folders:
            _remove_group(folder)
        if not survivors and not any(folder.exists() for folder in folders):
            return True
        if time.monotonic() > end:
            return not survivors
        time.sleep(0.01)  # noqa: TID251 - killed processes that are not our children take a moment to go


def _kill_group(folder: Path) -> None:
    try:
        (folder / "cgroup.kill").write_text("1")
        return
    except OSError:  # version 1, before Linux 5.14, or gone
        pass
    for procs in folder.rglob("cgroup.procs"):
        try:
            pids = procs.read_text().split()
        except OSError:
            continue
        for pid in pids:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except OSError:
                pass


def _remove_group(folder: Path) -> None:
    for path, _, _ in os.walk(folder, topdown=False):
        try:
            Path(path).rmdir()
        except OSError:  # still busy
            pass
