"""Control connections: every rank to rank 0, framed JSON, both sides authenticated by the gang's key.

A thread that waits for messages on them can be woken by others through a self-pipe.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from contextlib import closing
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from trainmaster_train.horovod.controller.coordinator import ranks
from trainmaster_train.horovod.controller.handshake import HandshakeListener, greet, is_local, warn
from trainmaster_train.horovod.errors import HorovodInternalError

_HEADER = struct.Struct("!I")
_READ_BYTES = 262_144
_TRY_AGAIN_S = 0.1
_HELLO_S = 10.0
_PURPOSE = b"link"
# A healthy process reads every two seconds, and a connection's buffers hold hundreds of messages.
_SEND_S = 60.0


class ControlLink:
    """One connection. Sending waits up to ``patience_s`` for the peer to read; receiving does not wait."""

    def __init__(self, connection: socket.socket, patience_s: float = _SEND_S) -> None:
        self.socket = connection
        self._patience_s = patience_s
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Any, patience_s: Optional[float] = None) -> None:
        """Raises ``TimeoutError`` if the peer reads nothing for ``patience_s``: nothing more can be sent then."""
        patience_s = self._patience_s if patience_s is None else patience_s
        data = json.dumps(message, separators=(",", ":")).encode()
        left = memoryview(_HEADER.pack(len(data)) + data)
        while True:
            try:
                left = left[self.socket.send(left, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                pass
            if not left:
                return
            poll = select.poll()
            poll.register(self.socket, select.POLLOUT)
            if not poll.poll(patience_s * 1000):
                self.socket.shutdown(socket.SHUT_WR)  # nothing may follow an incomplete message
                raise TimeoutError(f"it has read nothing for {patience_s:g} s")

    def receive(self) -> List[Any]:
        """The messages that have arrived. Raises ``ConnectionError`` if the peer is gone."""
        try:
            data = self.socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("closed")
        self._buffer += data
        return self._frames()

    def receive_next(self, deadline_s: float) -> Any:
        """Wait for the next message, and take no later one. Raises ``TimeoutError``, ``ConnectionError``."""
        while True:
            frames = self._frames(limit=1)
            if frames:
                return frames[0]
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
        frames: List[Any] = []
        buffer = self._buffer
        while len(buffer) >= _HEADER.size and not (limit and len(frames) >= limit):
            (length,) = _HEADER.unpack_from(buffer)
            end = _HEADER.size + length
            if len(buffer) < end:
                break
            frames.append(json.loads(bytes(buffer[_HEADER.size : end])))
            del buffer[:end]
        return frames


def listen(host: str) -> socket.socket:
    """A listener on any free port; on the loopback only if ``host`` is a loopback address."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1" if is_local(host) else "", 0))
    listener.listen(1024)
    return listener


def accept_all(
    listener: socket.socket, *, size: int, key: bytes, announcement: Dict[str, Any], timeout_s: float
) -> Tuple[Dict[int, ControlLink], List[Dict[str, Any]]]:
    """Rank 0's side: one link to each other rank, and the announcements of all ranks, in rank order.

    Raises:
        HorovodInternalError: a rank did not connect in time, or was lost again; names it.
    """
    deadline_s = time.monotonic() + timeout_s
    links: Dict[int, ControlLink] = {}
    received: Dict[int, Dict[str, Any]] = {0: announcement}
    with closing(HandshakeListener(listener, key, _PURPOSE, 0, size)) as handshakes:
        while len(links) < size - 1:
            peer = handshakes.accept_peer(deadline_s)
            if peer is None:
                missing = [rank for rank in range(1, size) if rank not in links]
                raise HorovodInternalError(f"hvd.init: {ranks(missing)} of {size} did not come within {timeout_s:g} s.")
            rank, connection = peer
            link = ControlLink(connection)
            try:
                if rank in links:
                    raise ConnectionRefusedError("is there already")
                received[rank] = link.receive_next(min(deadline_s, time.monotonic() + _HELLO_S))
            except (OSError, ValueError):
                # This peer gave up: it connects again.
                link.close()
                continue
            links[rank] = link
    announcements = [received[rank] for rank in range(size)]
    for rank, link in links.items():
        try:
            link.send(announcements)
        except OSError as error:
            raise HorovodInternalError(
                f"hvd.init: rank {rank} was lost while the others were waited for ({error})."
            ) from error
    return links, announcements


def connect(
    addresses: Sequence[Tuple[str, int]], *, rank: int, key: bytes, announcement: Dict[str, Any], timeout_s: float
) -> Tuple[ControlLink, List[Dict[str, Any]]]:
    """The link to rank 0, at the first of its ``addresses`` that answers, and the announcements of all ranks.

    Raises:
        HorovodInternalError: rank 0 cannot be reached in time.
    """
    deadline_s = time.monotonic() + timeout_s
    tried: List[str] = []
    wrong = ""
    while (left_s := deadline_s - time.monotonic()) > 0:
        tried = [wrong] if wrong else []
        for host, port in addresses:
            try:
                link = ControlLink(socket.create_connection((host, port), timeout=5.0))
            except OSError as error:
                tried.append(f"{host}:{port} ({error.strerror or error})")
                continue
            try:
                greet(link.socket, key, _PURPOSE, rank, 0, timeout_s=min(left_s, _HELLO_S))
                link.send(announcement)
                return link, link.receive_next(deadline_s)
            except (OSError, ValueError) as error:
                link.close()
                if not isinstance(error, PermissionError):
                    tried.append(f"{host}:{port} ({error})")
                elif not wrong:
                    wrong = f"{host}:{port}: {error}"
                    tried.append(wrong)
                    warn(f"{wrong}; asking again for {timeout_s:g} s")
        select.select([], [], [], _TRY_AGAIN_S)
    raise HorovodInternalError(
        f"hvd.init: rank {rank} could not reach rank 0 within {timeout_s:g} s: {'; '.join(tried) or 'no address'}."
    )


class WakeupPipe:
    """A pipe from the process to itself. Use by several threads needs a lock."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._is_set = False

    def fileno(self) -> int:
        """Readable after :meth:`set`, until :meth:`clear`."""
        return self._read

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            try:
                os.write(self._write, b"!")
            except OSError:  # full: earlier bytes wake the reader as well
                pass

    def clear(self) -> None:
        self._is_set = False
        try:
            os.read(self._read, 512)
        except OSError:
            pass

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


def wait_for_event(
    links: Mapping[int, ControlLink], event: int, wakeup: WakeupPipe, timeout_s: float
) -> Tuple[List[int], bool]:
    """The ranks whose link has ``event`` (of poll) or is broken, and whether ``wakeup`` was set; neither after
    ``timeout_s``.
    """
    poll = select.poll()
    poll.register(wakeup, select.POLLIN)
    by_number = {}
    for rank, link in links.items():
        number = link.fileno()
        if number >= 0:  # not closed by another thread
            poll.register(number, event)
            by_number[number] = rank
    ready = [number for number, _ in poll.poll(timeout_s * 1000)]
    return [by_number[number] for number in ready if number in by_number], wakeup.fileno() in ready
