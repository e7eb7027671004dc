"""The connections of a ps to its workers: greeted, read, answered, and dropped when they are lost."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set

import zmq

from trainmaster_train.ps.server.sessions import WorkerListener, WorkerRequest, WorkerSession
from trainmaster_train.ps.wire.messages import WireError

_FAREWELL_S = 0.5


class WorkerConnections:
    """Sessions by the peers' identities. ``on_lost`` is called with a session whose connection was dropped."""

    def __init__(self, listener: WorkerListener, *, ps: int, on_lost: Callable[[WorkerSession], None]) -> None:
        self._listener = listener
        self._ps = ps
        self._on_lost = on_lost
        self._logged: Set[str] = set()
        self.sessions: Dict[bytes, WorkerSession] = {}

    def answer_zap(self) -> None:
        if not self._listener.answer_zap():
            self._log_once("a connection with a wrong token was refused")

    def receive(self) -> Optional[WorkerRequest]:
        """Read one message; ``None`` if it is no request. An error in it ends only its connection."""
        identity, *parts = self._listener.socket.recv_multipart(copy=False)
        name = identity.bytes
        session = self.sessions.get(name)
        try:
            if session is None:
                self._greet(name, parts)
                return None
            return WorkerRequest(session, session.seal.open(parts[0].bytes, len(parts) - 1), parts[1:])
        except WireError as error:
            self.disconnect(name, error)
        except zmq.ZMQError:
            self.drop(name)
        return None

    def disconnect(self, identity: bytes, error: WireError) -> None:
        """Drop the connection of a peer that breaks the protocol."""
        session = self.sessions.get(identity)
        peer_name = session.peer_name if session else "an unknown process"
        print(f"ps {self._ps}: {peer_name} is disconnected: {error}.", flush=True)
        self.drop(identity)

    def refuse(self, request: WorkerRequest, sentence: str) -> None:
        print(f"ps {self._ps}: {request.session.peer_name} is refused: {sentence}.", flush=True)
        self.reply(request, {"refused": sentence})

    def reply(self, to: WorkerRequest, header: Mapping[str, Any], frames: Sequence[Any] = ()) -> None:
        self.send(to.session, {"re": to.header.get("id"), **header}, frames)

    def send(
        self, session: WorkerSession, header: Dict[str, Any], frames: Sequence[Any] = (), *, track: bool = False
    ) -> Any:
        try:
            return self._listener.send(session, header, frames, track=track)
        except zmq.ZMQError:  # the worker has left, or does not read its answers
            self.drop(session.identity)
            return None

    def drop(self, identity: bytes) -> None:
        session = self.sessions.pop(identity, None)
        if session is not None:
            self._on_lost(session)

    def announce_failure(self, sentence: str) -> None:
        """Send the workers the reason why this ps ends. Reads on for a moment: closing a socket with unread data
        resets the connection, and the reason would never arrive.
        """
        for session in list(self.sessions.values()):
            self.send(session, {"op": "fatal", "sentence": sentence})
        deadline = time.monotonic() + _FAREWELL_S
        while self.sessions and self._listener.socket.poll(int(max(0.0, deadline - time.monotonic()) * 1000)):
            self._listener.socket.recv_multipart(copy=False)

    def _greet(self, identity: bytes, parts: List[Any]) -> None:
        session = self._listener.greet(identity, parts[0].bytes if parts else b"")
        if session is not None:
            self.sessions[identity] = session
            self.send(session, {"op": "welcome"})

    def _log_once(self, sentence: str) -> None:
        if sentence not in self._logged:
            self._logged.add(sentence)
            print(f"ps {self._ps}: {sentence}.", flush=True)
