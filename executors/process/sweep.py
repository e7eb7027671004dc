"""Kills what a runtime left behind when it was killed itself: by its control groups, and by the mark in the
environment of all that it started.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from core.domain.errors import ExecutorTryAgain
from executors.process import procfs

if TYPE_CHECKING:
    from executors.process.state import ReplicaFolder

_LIMIT_S: Final = 5.0
_CGROUPS: Final = Path("/sys/fs/cgroup")


def sweep(folder: ReplicaFolder, mark: str) -> None:
    """Returns when nothing is left. Raises :class:`ExecutorTryAgain` if something does not die."""
    runtime = folder.runtime()
    if not _sweep(mark, runtime.groups if runtime is not None else ()):
        raise ExecutorTryAgain(f"{folder.path.name} does not end; one of its processes waits in the kernel.")


def sweep_once(path: Path, mark: str, groups: Iterable[str]) -> None:
    """As :func:`sweep`, remembered in the folder, for it is asked at every look at a lost replica."""
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
        left = procfs.marked(mark)
        for pid, ticks in left:
            procfs.send(pid, ticks, signal.SIGKILL)
        for folder in folders:
            _remove_group(folder)
        if not left and not any(folder.exists() for folder in folders):
            return True
        if time.monotonic() > end:
            return not left
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
