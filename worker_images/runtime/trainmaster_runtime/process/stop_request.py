"""Whether the platform asks the replica to stop, and with what grace."""

from __future__ import annotations

import json

from trainmaster_runtime.process.exits import ReplicaEnd

_STOP_FILE = "stop.json"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster_runtime.record import StateFolder


class StopRequest:
    """The stop request in the state folder; a signal announces it.

    ``asked_path``: the engine's file with the request, where a signal would lose the exit; ``None``: it has none.
    """

    def __init__(self, state: StateFolder, asked_path: str | None, default_grace_s: float) -> None:
        self._state = state
        self._asked_path = asked_path
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
        text = "" if self._asked_path is None else read_text(self._asked_path)
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


def read_text(path: str) -> str:
    """Stripped content of the file ``path``; empty where there is none."""
    try:
        with open(path) as stream:
            return stream.read().strip()
    except OSError:
        return ""
