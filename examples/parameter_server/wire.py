"""Frames between workers and parameter servers: named messages with one float32 vector, over TCP.

A frame is ``magic(4) op(1) meta_length(u32) payload_length(u64)``, the meta (a JSON object), the payload (raw
little-endian float32) and a 32-byte tag, HMAC-SHA256 over the frame's number and everything before. Nothing that
arrives is ever executed or unpickled, and nothing is read beyond the limits.

Before the first frame both sides prove that they know the job's key, each on the other's random nonce; the nonces
make the key of the connection, so no frame of another connection, or of another place in this one, is accepted.
The frames are authenticated, not encrypted: this is for the network inside a job.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]

MAGIC: Final = b"TMPS"
HEADER: Final = struct.Struct(">4sBIQ")
NONCE_BYTES: Final = 32
TAG_BYTES: Final = 32
MAX_META_BYTES: Final = 64 * 1024
MAX_PAYLOAD_BYTES: Final = 2**31  # of one shard; a larger model takes more ps
HANDSHAKE_TIMEOUT_S: Final = 10.0


class Op(IntEnum):
    """What a frame asks for, or answers."""

    HELLO = 1  # worker: who I am -> OK {"is_ready", "version"}
    INIT = 2  # worker: the first values of the shard -> OK; the first one wins
    PULL = 3  # -> OK {"version"} and the shard's values
    PUSH = 4  # worker: gradients {"version"} -> OK {"version", "staleness"} and the new values
    SAVE = 5  # worker: write the shard into the staged checkpoint {"step"} -> OK
    OK = 6
    REFUSED = 7  # {"sentence"}


class WireError(ConnectionError):
    """The other side is not what it should be, or sent what it must not; the connection is of no more use."""


class Refused(RuntimeError):
    """The server understood the request and says no; the message is its sentence."""


class Channel:
    """An authenticated connection. One thread at a time; ``send`` and ``receive`` raise ``OSError`` (of which
    ``WireError`` is one) when the connection is over.
    """

    def __init__(self, sock: socket.socket, key: bytes, *, is_server: bool) -> None:
        """Do the handshake. Takes ``sock`` over, and closes it when that fails.

        Raises:
            WireError: the other side does not know ``key``, or speaks something else.
            OSError: it went away, or was silent for ``HANDSHAKE_TIMEOUT_S``.
        """
        self._sock = sock
        self._sent = 0
        self._received = 0
        try:
            sock.settimeout(HANDSHAKE_TIMEOUT_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A peer whose machine vanished says nothing: let the kernel ask.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
            self._send_key, self._receive_key = self._shake_hands(key, is_server=is_server)
            sock.settimeout(None)
        except BaseException:
            sock.close()
            raise

    def _shake_hands(self, key: bytes, *, is_server: bool) -> tuple[bytes, bytes]:
        """The keys for what this side sends and for what it receives."""
        mine = os.urandom(NONCE_BYTES)
        self._sock.sendall(mine)
        theirs = bytes(self._read(NONCE_BYTES))
        here, there = (b"server", b"client") if is_server else (b"client", b"server")
        nonces = mine + theirs if is_server else theirs + mine
        self._sock.sendall(_mac(key, b"proof of the " + here + nonces))
        if not hmac.compare_digest(bytes(self._read(TAG_BYTES)), _mac(key, b"proof of the " + there + nonces)):
            raise WireError("the other side does not know the job's key")
        return _mac(key, b"frames of the " + here + nonces), _mac(key, b"frames of the " + there + nonces)

    def send(self, op: Op, meta: Mapping[str, Any] | None = None, values: Vector | None = None) -> None:
        text = json.dumps(meta or {}).encode()
        vector = np.zeros(0, "<f4") if values is None else np.ascontiguousarray(values, "<f4")
        payload = vector.data.cast("B") if vector.size else b""
        head = HEADER.pack(MAGIC, op, len(text), len(payload)) + text
        tag = _mac(self._send_key, struct.pack(">Q", self._sent), head, payload)
        self._sent += 1
        self._sock.sendall(head)
        self._sock.sendall(payload)
        self._sock.sendall(tag)

    def receive(self, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> tuple[Op, dict[str, Any], Vector]:
        """The next frame; waits for it. Nothing of it is looked at before its tag is right, except its lengths."""
        header = self._read(HEADER.size)
        magic, op, meta_length, payload_length = HEADER.unpack(header)
        if magic != MAGIC:
            raise WireError("not a frame of this protocol")
        if meta_length > MAX_META_BYTES or payload_length > max_payload_bytes or payload_length % 4:
            raise WireError(f"a frame of {meta_length} + {payload_length} bytes is not allowed here")
        text = self._read(meta_length)
        payload = self._read(payload_length)
        tag = _mac(self._receive_key, struct.pack(">Q", self._received), header, text, payload)
        if not hmac.compare_digest(bytes(self._read(TAG_BYTES)), tag):
            raise WireError("a frame's tag is wrong: it was changed, repeated or is out of order")
        self._received += 1
        try:
            meta = json.loads(bytes(text))
            known = Op(op)
        except (ValueError, RecursionError) as error:
            raise WireError("a frame of an unknown kind, or without a JSON object") from error
        if not isinstance(meta, dict):
            raise WireError("a frame's meta is not a JSON object")
        return known, meta, np.frombuffer(payload, dtype="<f4")

    def ask(
        self, op: Op, meta: Mapping[str, Any] | None = None, values: Vector | None = None
    ) -> tuple[dict[str, Any], Vector]:
        """Send a request and wait for its answer.

        Raises:
            Refused: the server's sentence.
            OSError: the connection is over; whether the request was carried out is unknown.
        """
        self.send(op, meta, values)
        return self.answer()

    def answer(self) -> tuple[dict[str, Any], Vector]:
        """The answer to a request that ``send`` sent. Raises as ``ask``."""
        answer, answer_meta, answer_values = self.receive()
        if answer is Op.REFUSED:
            raise Refused(str(answer_meta.get("sentence", "refused")))
        if answer is not Op.OK:
            raise WireError(f"{answer.name} is no answer")
        return answer_meta, answer_values

    def close(self) -> None:
        """Ends a ``receive`` that another thread waits in, too."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already
        self._sock.close()

    def _read(self, count: int) -> bytearray:
        buffer = bytearray(count)
        view = memoryview(buffer)
        while view:
            received = self._sock.recv_into(view)
            if received == 0:
                raise WireError("the other side closed the connection")
            view = view[received:]
        return buffer


def _mac(key: bytes, *parts: bytes | bytearray | memoryview) -> bytes:
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(part)
    return mac.digest()
