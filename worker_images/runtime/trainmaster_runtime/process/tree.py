"""Signals to a tree of processes, and the end of all of it."""

from __future__ import annotations

import os
import signal

from trainmaster_runtime import clock
from trainmaster_runtime.process import procfs

_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "busybox", "ash")


def is_shell(pid: int) -> bool:
    """Whether ``pid`` runs a shell now: shells die of SIGTERM without passing it on."""
    try:
        return os.path.basename(os.readlink("/proc/%d/exe" % pid)) in _SHELLS
    except OSError:
        return False


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def ask_to_end(pid: int) -> None:
    """SIGTERM to a started process; to its whole group when it is a shell.

    Not to every process: a trainer that writes its last checkpoint on SIGTERM needs its data loaders until then.
    """
    if not is_shell(pid):
        send(pid, signal.SIGTERM)
        return
    try:
        os.killpg(pid, signal.SIGTERM)
    except (ProcessLookupError, PermissionError):
        send(pid, signal.SIGTERM)


def reap() -> list[tuple[int, int]]:
    """``(pid, wait status)`` of every child that has ended, adopted ones included."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def kill_all(limit_s: float = 10.0) -> list[tuple[int, int]]:
    """SIGKILL everything below this process until nothing is left; returns the children reaped meanwhile.

    This process must be a subreaper: then nothing below can get away, whatever it forks or detaches.
    A process in an uninterruptible wait outlives ``limit_s``.
    """
    ended = reap()
    end = clock.monotonic() + limit_s
    wait = 0.001
    while True:
        remaining = procfs.descendants(os.getpid())
        if not remaining or clock.monotonic() > end:
            return ended
        for pid in remaining:
            send(pid, signal.SIGKILL)
        clock.pause(wait)
        wait = min(wait * 2, 0.05)
        ended += reap()
