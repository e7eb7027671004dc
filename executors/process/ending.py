"""Ends a replica whose attempt is removed."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Final

from core.domain.errors import ExecutorTryAgain
from executors.process import procfs
from executors.process.state import ReplicaFolder, mark_of

_TIMEOUT_S: Final = 10.0
_END_S: Final = 2.5  # a runtime whose job has ended stays for 2 s where the API takes nothing, and keeps its reports
_LAST_CALL_S: Final = 60.0  # and for some 10 s while the API takes them, or they are still being read
_RETRY_S: Final = 2.0  # no event says that the reports were sent
_LOOK_S: Final = 0.02


def end_replica(folder: ReplicaFolder) -> None:
    """Kill the replica; returns when no process holds its folder any more. Raises ``ExecutorTryAgain``."""
    end = time.monotonic() + _TIMEOUT_S
    stop_sent_at = None
    is_ended = folder.read("exit.json") is not None
    last_call = folder.path.parent / "last_call"
    while True:
        runtime = folder.runtime()
        if runtime is not None and runtime.is_alive():
            # The runtime knows its tree best; if it does not do it in time, it goes with its tree.
            if stop_sent_at is None:
                stop_sent_at = time.monotonic()
                if not is_ended:
                    folder.write("stop.json", {"grace_s": 0})
                    procfs.send(runtime.pid, runtime.start_ticks, signal.SIGTERM)
            if time.monotonic() > stop_sent_at + _END_S or (is_ended and last_call.exists()):
                if is_ended and not _is_last_call_over(last_call):
                    raise ExecutorTryAgain(
                        f"{folder.path.name} has ended and still sends its last reports.", retry_after_s=_RETRY_S
                    )
                procfs.send(runtime.pid, runtime.start_ticks, signal.SIGKILL)
        elif folder.try_lock():
            procfs.kill_replica(folder.path, mark_of(folder.key), runtime.groups if runtime is not None else ())
            return
        if time.monotonic() > end:
            raise ExecutorTryAgain(f"{folder.path.name} does not end; one of its processes waits in the kernel.")
        time.sleep(_LOOK_S)  # noqa: TID251 - another process's end, which is not our child's


def _is_last_call_over(call: Path) -> bool:
    """Makes the call of an attempt the first time. A file: the next look may be another process's."""
    try:
        if not call.exists():
            call.touch(mode=0o600)
        return time.time() > call.stat().st_mtime + _LAST_CALL_S  # noqa: TID251 - the file system's own clock
    except FileNotFoundError:  # another process has removed it all
        return True
