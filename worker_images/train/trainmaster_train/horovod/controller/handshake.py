"""Mutual authentication of connections: both sides prove, on each other's nonce, that they know the gang's key.

The messages that follow are partly pickled objects, so an unauthenticated process must never get that far. The key
itself is never sent: it is derived from the attempt's token, which the platform gives only to the replicas of the
attempt. What follows the proof is neither signed nor encrypted: this is for the network inside a job.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import select
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Dict, Mapping, Optional, Set, Tuple

KEY_BYTES = 32
_HELLO = struct.Struct("!32sI")
_ANSWER = struct.Struct("!32s32s")
_PROOF_BYTES = 32
_RANKS = struct.Struct("!II")
# For a whole handshake of two messages; and how many unauthenticated connections are allowed besides the gang's own.
_GREETING_S = 30.0
_MAX_UNPROVEN = 128


def own_key(environ: Optional[Mapping[str, str]] = None) -> Optional[bytes]:
    """The key of this process: derived from the attempt's token, or outside the platform from ``HOROVOD_KEY``; ``None``
    if there is neither.

    Raises:
        ValueError: the token's file cannot be read.
    """
    env = os.environ if environ is None else environ
    secret = env.get("HOROVOD_KEY", "")
    file = env.get("TRAINMASTER_TOKEN_FILE", "")
    if file and Path(file).exists():
        try:
            secret = Path(file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ValueError(f"TRAINMASTER_TOKEN_FILE: {file} cannot be read ({error.strerror}).") from error
    return mac(secret.encode(), b"trainmaster horovod") if secret else None


def mac(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256, 32 bytes."""
    code = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        code.update(part)
    return code.digest()


def is_local(host: str) -> bool:
    """Whether ``host`` is a loopback address."""
    return host == "localhost" or host.startswith("127.")


def greet(connection: socket.socket, key: bytes, purpose: bytes, rank: int, to: int, *, timeout_s: float) -> None:
    """The connecting side, ``rank``; when it returns, it and rank ``to`` have authenticated each other.

    Raises:
        PermissionError: the other side has another key, or none.
        OSError: it closed the connection, or sent nothing for ``timeout_s``.
    """
    connection.settimeout(timeout_s)
    nonce = os.urandom(KEY_BYTES)
    connection.sendall(_HELLO.pack(nonce, rank))
    peer_nonce, peer_proof = _ANSWER.unpack(_read_exactly(connection, _ANSWER.size))
    if not hmac.compare_digest(peer_proof, _proof(key, b"listening", purpose, rank, to, nonce + peer_nonce)):
        raise PermissionError(
            f"the process that answered is not rank {to} of this gang: it does not know the gang's key"
        )
    connection.sendall(_proof(key, b"connecting", purpose, rank, to, nonce + peer_nonce))
    connection.settimeout(None)


class HandshakeListener:
    """The listening side, ``rank``: accepts processes that prove to be another rank of ``size``.

    All connections are served concurrently: a silent one delays no other. ``listener`` stays the caller's.
    ``purpose``: a proof is valid for one purpose only.
    """

    def __init__(self, listener: socket.socket, key: bytes, purpose: bytes, rank: int, size: int) -> None:
        self._listener = listener
        self._key = key
        self._purpose = purpose
        self._rank = rank
        self._size = size
        self._pending: Dict[int, _PendingPeer] = {}
        self._reported_hosts: Set[str] = set()
        listener.setblocking(False)

    def close(self) -> None:
        """Close all unauthenticated connections."""
        for peer in self._pending.values():
            peer.socket.close()
        self._pending.clear()

    def accept_peer(self, deadline_s: float) -> Optional[Tuple[int, socket.socket]]:
        """The next authenticated peer: its rank and connection; ``None`` after ``deadline_s`` (monotonic)."""
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return None
            poll = select.poll()
            poll.register(self._listener, select.POLLIN)
            for number in self._pending:
                poll.register(number, select.POLLIN)
            for number, _ in poll.poll(min(left_s, 1.0) * 1000):
                if number == self._listener.fileno():
                    self._accept()
                elif self._advance(number):
                    peer = self._pending.pop(number)
                    peer.socket.setblocking(True)
                    return peer.rank, peer.socket
            self._drop_overdue()

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except OSError:  # it is gone again
            return
        connection.setblocking(False)
        self._pending[connection.fileno()] = _PendingPeer(connection, str(address[0]), time.monotonic() + _GREETING_S)

    def _drop_overdue(self) -> None:
        """Close connections that took too long, and the oldest if there are too many."""
        now_s = time.monotonic()
        excess = len(self._pending) - self._size - _MAX_UNPROVEN
        for position, (number, peer) in enumerate(list(self._pending.items())):
            if now_s > peer.deadline_s or position < excess:
                self._pending.pop(number).socket.close()

    def _advance(self, number: int) -> bool:
        """Whether the peer is authenticated now. A connection that fails is closed; a real rank connects again."""
        peer = self._pending.get(number)
        if peer is None:
            return False
        try:
            return self._read_step(peer)
        except BlockingIOError:
            return False
        except PermissionError:
            self._report_wrong_key(peer)
        except (OSError, struct.error):
            if peer.nonces:
                self._report_wrong_key(peer)  # it closed the connection when it saw this rank's proof
        self._pending.pop(number).socket.close()
        return False

    def _read_step(self, peer: _PendingPeer) -> bool:
        data = peer.socket.recv(peer.expected_bytes - len(peer.data))
        if not data:
            raise ConnectionResetError("closed")
        peer.data += data
        if len(peer.data) < peer.expected_bytes:
            return False
        if peer.nonces:
            proof = _proof(self._key, b"connecting", self._purpose, peer.rank, self._rank, peer.nonces)
            if not hmac.compare_digest(peer.data, proof):
                raise PermissionError("another key")
            return True
        peer_nonce, peer.rank = _HELLO.unpack(peer.data)
        if peer.rank >= self._size or peer.rank == self._rank:
            raise ConnectionRefusedError("no such rank")
        nonce = os.urandom(KEY_BYTES)
        peer.nonces = peer_nonce + nonce
        peer.data, peer.expected_bytes = b"", _PROOF_BYTES
        proof = _proof(self._key, b"listening", self._purpose, peer.rank, self._rank, peer.nonces)
        peer.socket.sendall(_ANSWER.pack(nonce, proof))
        return False

    def _report_wrong_key(self, peer: _PendingPeer) -> None:
        if peer.host not in self._reported_hosts:
            self._reported_hosts.add(peer.host)
            warn(f"{peer.host} came as rank {peer.rank}, but not with this gang's key: waiting for the right one")


class _PendingPeer:
    """A connection that is not authenticated yet."""

    __slots__ = ("data", "deadline_s", "expected_bytes", "host", "nonces", "rank", "socket")

    def __init__(self, connection: socket.socket, host: str, deadline_s: float) -> None:
        self.socket = connection
        self.host = host
        self.deadline_s = deadline_s
        self.expected_bytes = _HELLO.size
        self.data = b""
        self.nonces = b""
        self.rank = -1


def warn(sentence: str) -> None:
    print(f"trainmaster.horovod: {sentence}.", file=sys.stderr, flush=True)


def _proof(key: bytes, side: bytes, purpose: bytes, rank: int, to: int, nonces: bytes) -> bytes:
    return mac(key, b"proof of the %s side, %s" % (side, purpose), _RANKS.pack(rank, to), nonces)


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionResetError("closed")
        data += more
    return data
