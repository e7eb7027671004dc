"""Files of the state folder: written whole or not at all, so that a reader never meets half of one.

======================  ==============================================================================================
``lock``                held by the creator and then, without a gap, by the runtime for as long as it lives
``order.json``          what to run
``token``               the attempt's token
``runtime.json``        the process that runs it: pid, start, boot, folders of its control groups. Its presence means:
                        started once, never to be started again
``start_claim``         of a warm start: created by the process that starts the order, the executor (empty) or a forked
                        runtime (its pid and start); the other one leaves it alone
``status.json``         phase, detail, facts; replaced as things move on
``stop.json``           the wish to stop, with its grace; written by the executor before it sends SIGTERM
``api.json``            ``{"url": …}``: where the API is now, when it has moved since the order was written; an order
                        may name another file for it, such as one for all replicas of a machine
``world.json``          of an elastic gang: the newest world, written by an executor; see ``worlds``
``exit.json``           how it ended; the last thing that the runtime writes
``work``                the work folder, ``/data`` of the job
======================  ==============================================================================================

The folder is its owner's alone, and so is each file: the order's environment holds secrets.
"""

from __future__ import annotations

import json
import os

from trainmaster_runtime.process.exits import ReplicaEnd
from trainmaster_runtime.process.job_user import as_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_RESERVED_BYTES = 24_576  # an exit record with its 4 KiB of log, each byte of it escaped at worst
_RESERVE = "exit.reserve"
_SENTENCE_CHARS = 500
_COPY_BYTES = 4_096  # what Kubernetes keeps of a termination message

_STOP_FILE = "stop.json"


class StateFolder:
    """The state folder of one start of one replica."""

    def __init__(self, path: str) -> None:
        self.path = path

    def file(self, name: str) -> str:
        return self.path + "/" + name

    def read(self, name: str) -> dict[str, Any] | None:
        """The JSON object in ``name``, ``None`` when there is none."""
        return read_json(self.file(name))

    def write(self, name: str, data: dict[str, Any]) -> None:
        """Replace ``name``. Raises ``OSError``."""
        temporary = self.file(name + ".new")
        with as_root():
            with open(temporary, "wb", opener=_private) as stream:
                stream.write(json.dumps(data).encode())
            os.rename(temporary, self.file(name))

    def write_status(self, **status: object) -> None:
        """Replace the status. A full disk is ignored: the job goes on without a status."""
        try:
            self.write("status.json", status)
        except OSError:
            pass

    def reserve_exit(self) -> None:
        """Take the room that the exit record will need, while there is room: the disk may be full at the end."""
        with as_root(), open(self.file(_RESERVE), "wb", opener=_private) as stream:
            stream.write(b" " * _RESERVED_BYTES)

    def write_exit(self, data: dict[str, Any]) -> None:
        """Write the exit record durably, into the reserved room."""
        with as_root():
            self._write_exit(json.dumps(data).encode())

    def _write_exit(self, text: bytes) -> None:
        fd = os.open(self.file(_RESERVE), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.write(fd, text)
            os.ftruncate(fd, len(text))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(self.file(_RESERVE), self.file("exit.json"))
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        except OSError:  # some file systems cannot sync a folder
            pass
        finally:
            os.close(folder)


def write_copy(path: str, data: dict[str, Any]) -> None:
    """Write the exit record to ``path`` in at most 4096 bytes: the beginning of the log's tail goes first, then facts.

    A failure is ignored: the record itself is written.
    """
    short = dict(data)
    text = _encode(short)
    if len(text) > _COPY_BYTES:
        short.update(facts={}, log_tail="", sentence=short["sentence"][:_SENTENCE_CHARS])
        room = _COPY_BYTES - len(_encode(short))
        lines: list[str] = []
        for line in reversed(data["log_tail"].split("\n")):
            room -= len(_encode(line))  # its quotes are as long as the escaped line break
            if room < 0:
                break
            lines.append(line)
        short["log_tail"] = "\n".join(reversed(lines))
        text = _encode(short)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.write(fd, text)
        finally:
            os.close(fd)
    except OSError:
        pass


def _encode(data: object) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "replace")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class StopRequest:
    """The stop request in the state folder; a signal announces it.

    ``request_path``: the engine's file with the request, where a signal would lose the exit; ``None``: it has none.
    """

    def __init__(self, state: StateFolder, request_path: str | None, default_grace_s: float) -> None:
        self._state = state
        self._request_path = request_path
        self._default_grace_s = default_grace_s
        self._last_request = ""  # last content of the engine's file

    @property
    def is_there(self) -> bool:
        return self._state.read(_STOP_FILE) is not None

    @property
    def grace_s(self) -> float:
        return float((self._state.read(_STOP_FILE) or {}).get("grace_s", self._default_grace_s))

    def is_new(self) -> bool:
        """Whether the engine's file holds a new request, which is copied to the state folder; a shorter grace may
        follow.
        """
        text = "" if self._request_path is None else read_text(self._request_path)
        if not text or text == self._last_request:
            return False
        self._last_request = text
        try:
            grace = float(json.loads(text)["grace_s"])
        except (ValueError, LookupError, TypeError):
            grace = self._default_grace_s
        self._state.write(_STOP_FILE, {"grace_s": grace})
        return True

    def ending(self) -> ReplicaEnd:
        """The end of a replica after SIGTERM: from the platform, or from outside of it."""
        if self.is_there:
            return ReplicaEnd("stopped", None, "Stopped because the platform asked.")
        return ReplicaEnd("node_lost", None, "Ended from outside the platform, as when the machine shuts down.")


def read_json(path: str) -> dict[str, Any] | None:
    """The JSON object in the file ``path``, ``None`` when there is none."""
    try:
        with open(path, "rb") as stream:
            data = json.loads(stream.read())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def read_text(path: str) -> str:
    """Stripped content of the file ``path``; empty where there is none."""
    try:
        with open(path) as stream:
            return stream.read().strip()
    except OSError:
        return ""
