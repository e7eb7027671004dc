"""Messages between workers and ps over ZeroMQ: an authenticated header and frames of raw values.

A message is a header frame (32 bytes of HMAC-SHA256, then a JSON object) followed by any number of frames with raw
bytes, which are sent and read without a copy. Received data are never unpickled or executed.

Access is checked twice. ZeroMQ's PLAIN mechanism rejects connections without the right password. Then both sides prove,
on each other's nonce, that they know the job's key, from which each connection derives two keys of its own; each header
is sealed (HMAC) with one of them and its sequence number. The values themselves are neither sealed nor encrypted: this
is for the network inside a job.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import struct
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from trainmaster_train.ps.errors import ParameterServerError

TAG_BYTES = 32
NONCE_BYTES = 32
PROTOCOL = 5
ZAP_USER = b"trainmaster-ps"

_NUMBER = struct.Struct(">Q")


class WireError(ParameterServerError):
    """The peer is not authentic, or violates the protocol."""


def job_key(token_file: Optional[Path]) -> bytes:
    """The secret key of all replicas of an attempt: derived from the attempt's token, or outside the platform from
    ``PS_KEY``.

    Raises:
        ParameterServerError: there is neither.
    """
    secret = os.environ.get("PS_KEY", "")
    if token_file is not None and token_file.exists():
        secret = token_file.read_text(encoding="utf-8").strip()
    if not secret:
        raise ParameterServerError(
            "no key: outside the platform set PS_KEY to the same long random text for every process"
        )
    return _mac(secret.encode(), b"trainmaster parameter server")


def zap_password(key: bytes) -> bytes:
    """The password of ZeroMQ's PLAIN mechanism. It is sent unencrypted, and proves nothing in the handshake."""
    return _mac(key, b"gate").hex().encode()


def proof(key: bytes, side: bytes, nonces: bytes) -> str:
    return _mac(key, b"proof of the " + side + nonces).hex()


class Seal:
    """Seals the headers of one side, and verifies those of the other side, in order."""

    def __init__(self, key: bytes, nonces: bytes, *, is_server: bool) -> None:
        here, there = (b"server", b"worker") if is_server else (b"worker", b"server")
        self._send_key = _mac(key, b"headers of the " + here + nonces)
        self._receive_key = _mac(key, b"headers of the " + there + nonces)
        # A secret of this connection; proves that a file descriptor received by another socket is from this worker.
        self.ticket = _mac(key, b"ticket of the worker" + nonces)
        self._sent = 0
        self._received = 0

    def close(self, header: Mapping[str, Any], frames: Sequence[Any] = ()) -> bytes:
        """The header frame of a message with ``frames``."""
        text = json.dumps({**header, "frames": len(frames)}, separators=(",", ":")).encode()
        tag = _mac(self._send_key, _NUMBER.pack(self._sent), text)
        self._sent += 1
        return tag + text

    def open(self, data: bytes, frame_count: int) -> Dict[str, Any]:
        """The header in a header frame.

        Raises:
            WireError: it was not sealed by the peer with this sequence number and this number of frames.
        """
        tag = _mac(self._receive_key, _NUMBER.pack(self._received), data[TAG_BYTES:])
        if not hmac.compare_digest(data[:TAG_BYTES], tag):
            raise WireError("a header's seal is wrong: it was changed, repeated or is out of order")
        self._received += 1
        header = read_plain(data[TAG_BYTES:])
        if header.get("frames") != frame_count:
            raise WireError("a message with more or fewer frames than its header says")
        return header


def plain(header: Mapping[str, Any]) -> bytes:
    """A header of the handshake, without a seal."""
    return json.dumps(header).encode()


def read_plain(data: bytes) -> Dict[str, Any]:
    try:
        header = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError("a header that is not JSON") from error
    if not isinstance(header, dict):
        raise WireError("a header that is not a JSON object")
    return header


def bind_address(address: str) -> str:
    """The address to listen at for ``host:port``: the loopback if the host is a loopback address, else all interfaces,
    because a service name need not resolve to an address of this container.
    """
    host, port = split_address(address)
    return f"tcp://{'127.0.0.1' if host in ('127.0.0.1', 'localhost') else '*'}:{port}"


def connect_address(address: str) -> str:
    host, port = split_address(address)
    return f"tcp://{host}:{port}"


def split_address(address: str) -> Tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ParameterServerError(f"{address!r} in the layout is not host:port")
    return host, int(port)


def _mac(key: bytes, *parts: bytes) -> bytes:
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(part)
    return mac.digest()
