"""The control connections: every rank to rank 0, JSON in frames, each side proven by the gang's secret."""

from __future__ import annotations

import hmac
import json
import select
import socket
import struct
import time
from typing import Any, Dict, List, Sequence, Tuple

from trainmaster_train.horovod.coordinator import ranks
from trainmaster_train.horovod.errors import HorovodInternalError

_HEADER = struct.Struct("!I")
_READ_BYTES = 262_144
_TRY_AGAIN_S = 0.1


class Link:
    """One connection. Sending blocks while the other side's buffer is full; receiving does not block."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Any) -> None:
        data = json.dumps(message, separators=(",", ":")).encode()
        self.socket.sendall(_HEADER.pack(len(data)) + data)

    def receive(self) -> List[Any]:
        """The messages that are there. Raises ``ConnectionError`` where the other side is gone."""
        try:
            data = self.socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("closed")
        self._buffer += data
        return self._frames()

    def receive_one(self, deadline_s: float) -> Any:
        """The next message, before anything else is received. Raises ``TimeoutError``, ``ConnectionError``."""
        while True:
            found = self._frames(limit=1)
            if found:
                return found[0]
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self.socket], [], [], left_s)[0]:
                raise TimeoutError("no answer")
            data = self.socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("closed")
            self._buffer += data

    def close(self) -> None:
        self.socket.close()

    def _frames(self, limit: int = 0) -> List[Any]:
        found: List[Any] = []
        buffer = self._buffer
        while len(buffer) >= _HEADER.size and not (limit and len(found) >= limit):
            (length,) = _HEADER.unpack_from(buffer)
            end = _HEADER.size + length
            if len(buffer) < end:
                break
            found.append(json.loads(bytes(buffer[_HEADER.size : end])))
            del buffer[:end]
        return found


def listen(host: str) -> socket.socket:
    """A listener on any port: on the loopback alone where ``host`` is there."""
    local = host == "localhost" or host.startswith("127.")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1" if local else "", 0))
    listener.listen(1024)
    return listener


def accept_all(
    listener: socket.socket, *, size: int, secret: str, hello: Dict[str, Any], timeout_s: float
) -> Tuple[Dict[int, Link], List[Dict[str, Any]]]:
    """Rank 0's side: one link for each other rank, and what every rank said of itself, in rank order.

    Raises:
        HorovodInternalError: not all came in time; says who is missing.
    """
    deadline_s = time.monotonic() + timeout_s
    links: Dict[int, Link] = {}
    hellos: Dict[int, Dict[str, Any]] = {0: hello}
    while len(links) < size - 1:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not select.select([listener], [], [], left_s)[0]:
            missing = [rank for rank in range(1, size) if rank not in links]
            raise HorovodInternalError(f"hvd.init: {ranks(missing)} of {size} did not come within {timeout_s:g} s.")
        connection, _ = listener.accept()
        link = Link(connection)
        try:
            connection.settimeout(min(10.0, max(0.1, left_s)))
            said = link.receive_one(time.monotonic() + min(10.0, left_s))
            connection.settimeout(None)
            if not isinstance(said, dict) or not hmac.compare_digest(str(said.get("secret")), secret):
                raise ConnectionRefusedError("not one of us")
            rank = int(said["rank"])
            if not 0 < rank < size or rank in links:
                raise ConnectionRefusedError("no such rank")
        except (OSError, ValueError, KeyError):
            # A stranger, or one that gave up: those that are meant come again.
            link.close()
            continue
        links[rank] = link
        hellos[rank] = said["hello"]
    everybody = [hellos[rank] for rank in range(size)]
    for link in links.values():
        link.send(everybody)
    return links, everybody


def connect(
    addresses: Sequence[Tuple[str, int]], *, rank: int, secret: str, hello: Dict[str, Any], timeout_s: float
) -> Tuple[Link, List[Dict[str, Any]]]:
    """The link to rank 0, at the first of its ``addresses`` that answers, and what every rank said of itself.

    Raises:
        HorovodInternalError: rank 0 is not to be reached in time.
    """
    deadline_s = time.monotonic() + timeout_s
    tried: List[str] = []
    while time.monotonic() < deadline_s:
        tried = []
        for host, port in addresses:
            try:
                link = Link(socket.create_connection((host, port), timeout=5.0))
            except OSError as error:
                tried.append(f"{host}:{port} ({error.strerror or error})")
                continue
            try:
                link.send({"rank": rank, "secret": secret, "hello": hello})
                everybody = link.receive_one(deadline_s)
            except (OSError, ValueError) as error:
                link.close()
                tried.append(f"{host}:{port} ({error})")
                continue
            link.socket.settimeout(None)
            return link, everybody
        select.select([], [], [], _TRY_AGAIN_S)
    raise HorovodInternalError(
        f"hvd.init: rank {rank} could not reach rank 0 within {timeout_s:g} s: {'; '.join(tried) or 'no address'}."
    )
