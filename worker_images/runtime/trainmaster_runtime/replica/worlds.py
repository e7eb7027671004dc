"""World updates of an elastic gang: layouts that arrive while the replica's processes run.

The executor puts the newest one into the state folder, or where an engine can change a file only so, into the folder of
``RuntimeOrder.request_path``. Processes that go from world to world by themselves (they use
``trainmaster_train.elastic``, and say so by a file) read it from ``/data/.trainmaster/world.json``; all others are
ended and started again in place, with the new world's environment.
"""

from __future__ import annotations

import base64
import json
import os
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainmaster_runtime.order import RuntimeOrder
    from trainmaster_runtime.record import StateFolder

# A process that lost a peer logs it and ends; the platform has this long to notice the dead peer. A machine
# counts as lost after a minute.
_HOLD_S = 90.0
# The same for a process that failed without a sign of a lost peer: perhaps by its own fault, so the wait is short.
_DOUBT_S = 10.0
FILE = "world.json"
_WORLD_REQUEST_FILE = "world"  # in the folder of the engine's requests
_KEEPS = "keeps-"  # with the local rank: this process goes from world to world by itself
# One that joins waits for nothing but its world: an engine that reads no status looks for this file.
_READY = "joins"
# Next to the logs, which all replicas of an attempt see: the program changes worlds by itself.
_GANG_KEEPS = ".keeps-processes"
_LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "gloo/transport",
    "NCCL error",
    "ncclRemoteError",
    "ncclSystemError",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "HorovodInternalError",
    "Application timeout caused pair closure",
    "Timed out waiting",
    "UnavailableError",
)


class WorldChanges:
    """Receives worlds from the platform, and tracks how the processes change to them.

    Args:
        job_folder: the real path of ``/data/.trainmaster``.
        shared: a folder that all replicas of the attempt see, where the executor does not tell one of the others.
    """

    def __init__(self, order: RuntimeOrder, state: StateFolder, job_folder: str, shared: str | None = None) -> None:
        self._order = order
        self._job_folder = job_folder
        self._paths = [state.file(FILE)]
        if order.request_path is not None:
            self._paths.append(os.path.dirname(order.request_path) + "/" + _WORLD_REQUEST_FILE)
        self._file_versions: dict[str, tuple[int, int, int]] = {}
        self._shared = None if shared is None else shared + "/" + _GANG_KEEPS
        self._has_shown = False
        self.number = order.world or 0
        if self.is_joining and self._shared is not None and os.path.exists(self._shared):
            order.joins_warm = True

    @property
    def is_joining(self) -> bool:
        return self.number == 0

    def newer_world(self) -> dict[str, Any] | None:
        """The newest received world, if it is newer than this one."""
        newest = None
        for path in self._paths:
            try:
                status = os.stat(path)
            except OSError:
                continue
            file_version = (status.st_ino, status.st_mtime_ns, status.st_size)
            if file_version == self._file_versions.get(path):
                continue
            update = _read(path)
            if update is None:
                continue  # partly written: read it again
            self._file_versions[path] = file_version
            number = int(update.get("world") or 0)
            if number > self.number and (newest is None or number > int(newest["world"])):
                newest = update
        return newest

    def enter(self, update: dict[str, Any]) -> None:
        """Change the order to the world of ``update``."""
        order = self._order
        if update["command"]:  # an image's own stays as it is
            order.command, order.args = update["command"], update["args"]
        job_env = {name: order.env[name] for name in update.get("kept_env") or () if name in order.env}
        order.env, order.process_env = {**update["env"], **job_env}, update["process_env"] or [{}]
        order.files = update.get("files") or {}
        self.number = order.world = int(update["world"])

    def publish(self) -> None:
        """Put the world where the processes look for it. Raises ``OSError``."""
        content = {
            "world": self.number,
            "processes": [{**self._order.env, **extra} for extra in self._order.process_env],
        }
        path = self._job_folder + "/" + FILE
        fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w") as stream:
            stream.write(json.dumps(content))
        os.rename(path + ".new", path)

    def keeps_processes(self) -> bool:
        """Whether every process has declared that it changes worlds by itself."""
        return all(os.path.exists(self._mark(number)) for number in range(len(self._order.process_env)))

    def forget_processes(self) -> None:
        """Before others are started."""
        for number in range(len(self._order.process_env)):
            try:
                os.unlink(self._mark(number))
            except OSError:
                pass

    def show(self) -> None:
        """Leave the files by which engines and those that join later learn what :meth:`facts` says."""
        facts = self.facts()
        if facts["is_ready"] and not self._has_shown:
            self._has_shown = _touch(self._job_folder + "/" + _READY)
        elif facts["keeps_processes"] and not self._has_shown and self._shared is not None:
            self._has_shown = _touch(self._shared)

    def facts(self) -> dict[str, Any]:
        """For the executor: see ``executors.base.ChangesWorlds``."""
        keeps_processes = self.keeps_processes()
        is_ready = self.is_joining and (keeps_processes or not self._order.joins_warm)
        return {"world": self.number, "keeps_processes": keeps_processes, "is_ready": is_ready}

    def _mark(self, number: int) -> str:
        return "%s/%s%d" % (self._job_folder, _KEEPS, number)


def _read(path: str) -> dict[str, Any] | None:
    """Content of ``path``, ``{}`` for an empty file; ``None``: partly written."""
    try:
        with open(path, "rb") as stream:
            content = stream.read().strip()
        if content and not content.startswith(b"{"):
            # Where there is little room for it.
            content = zlib.decompress(base64.b64decode(content))
        update = json.loads(content or b"{}")
    except (OSError, ValueError, zlib.error):
        return None
    return update if isinstance(update, dict) else None


def _touch(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    except OSError:
        return False
    return True


def hold_s(tail: str, *, was_killed: bool) -> float:
    """How long a replica that failed waits for a world without the one whose loss it failed of.

    Args:
        tail: the last lines of its log.
        was_killed: by a signal, which no lost peer brings about.
    """
    if was_killed:
        return 0.0
    return _HOLD_S if any(words in tail for words in _LOST_PEER) else _DOUBT_S
