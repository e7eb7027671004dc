"""Kills the processes that a killed runtime left behind: by its control groups, and by the mark in the environment of
each process that it started.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from core.domain.errors import ExecutorTryAgain
from executors.process import procfs

_LIMIT_S: Final = 5.0
_CGROUPS: Final = Path("/sys/fs/cgroup")


def sweep(path: Path, mark: str, groups: Iterable[str]) -> None:
    """Kill the processes of one replica; returns when none is left.

    Args:
        path: the replica's state folder.
        mark: value of the environment variable that its processes carry.
        groups: folders of its control groups.

    Raises:
        ExecutorTryAgain: a process does not die within five seconds.
    """
    if not _sweep(mark, groups):
        raise ExecutorTryAgain(f"{path.name} does not end; one of its processes waits in the kernel.")


def sweep_once(path: Path, mark: str, groups: Iterable[str]) -> None:
    """As :func:`sweep`, but once per folder: every observation of a lost replica calls it. A file records the
    success.
    """
    done = path / "swept"
    if not done.exists() and _sweep(mark, groups):
        try:
            done.touch(mode=0o600)
        except FileNotFoundError:
            pass


def _sweep(mark: str, groups: Iterable[str]) -> bool:
    folders = [Path(group) for group in groups if Path(group).is_relative_to(_CGROUPS)]
    end = time.monotonic() + _LIMIT_S
    while True:
        for folder in folders:
            _kill_group(folder)
        survivors = procfs.marked(mark)
        for pid, ticks in survivors:
            procfs.send(pid, ticks, signal.SIGKILL)
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
