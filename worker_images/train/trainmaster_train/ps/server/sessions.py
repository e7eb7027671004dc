"""Connections of a ps: their authentication, what each has sent so far, and snapshots of the values sent to them.

The optimizer updates its values in place while earlier responses may still be in flight, so a response is sent from a
copy. One copy serves all workers that ask for the same version, and its memory is reused once ZeroMQ has sent it: fresh
pages cost as much as copying.
"""

from __future__ import annotations

import hmac
import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
import zmq

from trainmaster_train.ps.errors import RefusedError
from trainmaster_train.ps.server.aggregation import Push
from trainmaster_train.ps.server.shard import RowGradients, Shard
from trainmaster_train.ps.wire.codec import Codec, raw, read
from trainmaster_train.ps.wire.messages import NONCE_BYTES, PROTOCOL, Seal, WireError, plain, proof, read_plain
from trainmaster_train.ps.wire.shared_memory import SharedShard

# A worker has only a few requests in flight; with more queued answers than this, it is not reading them.
SEND_HIGH_WATER = 1000
# The largest header lists every tensor of the model, in about a hundred bytes each.
HEADER_BYTES = 16 << 20
ZAP_ENDPOINT = "inproc://zeromq.zap.01"


class SnapshotPool:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._free: List[SnapshotBuffer] = []
        self._newest: Optional[SnapshotBuffer] = None

    def current(self) -> "SnapshotBuffer":
        """The values of the current version."""
        return self._snapshot_of(self._shard.version)

    def upcoming(self) -> "SnapshotBuffer":
        """The values of the version that is being computed. Only blocks that are updated already may be taken from
        it.
        """
        return self._snapshot_of(self._shard.version + 1)

    def invalidate(self) -> None:
        """Discard the newest snapshot: the values were set without a new version."""
        if self._newest is not None:
            self._newest.version = -1

    def _snapshot_of(self, version: int) -> "SnapshotBuffer":
        if self._newest is None or self._newest.version != version:
            if self._newest is not None:
                self._free.append(self._newest)
            copy = next((copy for copy in self._free if copy.is_sent()), None)
            if copy is None:
                copy = SnapshotBuffer(self._shard.values)
            else:
                self._free.remove(copy)
            copy.begin(version)
            self._newest = copy
        return self._newest


class SnapshotBuffer:
    """The values of one version. A block is copied when it is first needed."""

    def __init__(self, values: Sequence[torch.Tensor]) -> None:
        self._values = values
        self._copies = [torch.empty_like(block) for block in values]
        self._frames = [raw(block) for block in self._copies]
        self._are_taken = [False] * len(values)
        self._trackers: List[zmq.MessageTracker] = []
        self.version = -1

    def begin(self, version: int) -> None:
        self._are_taken = [False] * len(self._values)
        self._trackers.clear()
        self.version = version

    def frames(self, piece: range) -> List[Any]:
        for number in piece:
            if not self._are_taken[number]:
                self._copies[number].copy_(self._values[number])
                self._are_taken[number] = True
        return [self._frames[number] for number in piece]

    def track(self, tracker: Any) -> None:
        """Note the tracker of a message with these frames."""
        if isinstance(tracker, zmq.MessageTracker):
            self._trackers.append(tracker)

    def is_sent(self) -> bool:
        self._trackers = [tracker for tracker in self._trackers if not tracker.done]
        return not self._trackers


class WorkerReplica:
    """The values that one worker has, for compressed responses: it is sent the difference to the shard. What the
    compression loses remains a difference, and is sent with a later response (error feedback).
    """

    def __init__(self, shard: Shard, codec: Codec) -> None:
        """The worker is sent the current values in full."""
        self._shard = shard
        self._codec = codec
        self._values_at_worker = [values.clone() for values in shard.values]

    def frames(self) -> Tuple[List[Any], List[int]]:
        """Frames and exponents of the difference."""
        frames: List[Any] = []
        exponents: List[int] = []
        for at_worker, values in zip(self._values_at_worker, self._shard.values):
            missing = values - at_worker
            own, exponent = self._codec.encode(missing)
            at_worker.add_(self._codec.decode(own, values.numel(), values.dtype, exponent))
            frames += own
            exponents.append(exponent)
        return frames, exponents


@dataclass
class PartialPush:
    """A push of which only some blocks have arrived."""

    push_id: int
    version: int
    gradients: List[Optional[torch.Tensor]]
    rows: Dict[str, RowGradients] = field(default_factory=dict)

    def add(self, header: Mapping[str, Any], frames: Sequence[Any], shard: Shard, codec: Codec) -> None:
        """Decode one message's blocks and rows. Raises ``WireError`` when frames are missing, ``RefusedError``."""
        remaining = list(frames)
        for number, exponent in zip(header["blocks"], header["exponents"]):
            values = shard.values[number]
            block_frames, remaining = _split(remaining, codec.frame_count(values.dtype))
            self.gradients[number] = codec.decode(block_frames, values.numel(), values.dtype, exponent)
        for name in header.get("tables", ()):
            (indices, gradient), remaining = _split(remaining, 2)
            places = read(indices, torch.int64, None)
            table = shard.check_rows(name, places)
            rows = read(gradient, table.dtype, len(places) * table.columns).view(-1, table.columns)
            self.rows[name] = (places, rows)

    def to_push(self, worker: int, blank: Sequence[torch.Tensor]) -> Push:
        """Raises ``RefusedError`` when a block is missing."""
        gradients = [gradient for gradient in self.gradients if gradient is not None]
        if len(gradients) != len(blank):
            raise RefusedError(f"a push without {len(blank) - len(gradients)} of its blocks")
        return Push(worker, self.version, gradients, self.rows)


@dataclass(frozen=True)
class PullRequest:
    """A request for the values of update ``least`` or a newer one."""

    number: int
    least: int


@dataclass
class WorkerSession:
    """An authenticated connection. ``worker`` is the rank, or -1 for an evaluator."""

    identity: bytes
    seal: Seal
    peer_name: str
    worker: int = -1
    is_chief: bool = False
    has_joined: bool = False
    partial: Optional[PartialPush] = None
    replica: Optional[WorkerReplica] = None
    pending_pulls: List[PullRequest] = field(default_factory=list)
    pending_push: Optional[int] = None
    are_pieces_sent: bool = False  # of the answer to the pending push
    memory: Optional[SharedShard] = None  # of this worker, shared with this ps
    slot: int = 0  # of the shared memory, for the values that it waits for


@dataclass(frozen=True)
class WorkerRequest:
    """A request of a worker."""

    session: WorkerSession
    header: Mapping[str, Any]
    frames: Sequence[Any]


class WorkerListener:
    """The listening socket of a ps: authenticates workers by the key."""

    def __init__(self, key: bytes, password: bytes, *, largest_frame: int) -> None:
        """``largest_frame``: bytes of the largest frame of values; a peer that sends more is disconnected."""
        self._key = key
        self._password = password
        self.context = zmq.Context(io_threads=2)
        # ZeroMQ's authentication (ZAP), bound before any socket that uses it: without the password no byte is stored
        # here.
        self.zap = self.context.socket(zmq.REP)
        self.zap.bind(ZAP_ENDPOINT)
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.plain_server = True
        self.socket.router_mandatory = True  # sending to a peer that left raises an error
        self.socket.sndhwm = SEND_HIGH_WATER
        self.socket.maxmsgsize = HEADER_BYTES + largest_frame
        self.socket.heartbeat_ivl = 5_000
        self.socket.heartbeat_timeout = 30_000
        self.socket.linger = 0
        self._handshakes: Dict[bytes, bytes] = {}

    def close(self, *, linger_s: float = 0.0) -> None:
        self.socket.close(linger=int(linger_s * 1000))
        self.zap.close(linger=0)
        self.context.term()

    def answer_zap(self) -> bool:
        """Answer one ZAP request; returns whether access was granted."""
        parts = self.zap.recv_multipart()
        is_right = len(parts) >= 8 and hmac.compare_digest(parts[7], self._password)
        code, text = (b"200", b"OK") if is_right else (b"400", b"wrong token")
        self.zap.send_multipart([b"1.0", parts[1], code, text, b"", b""])
        return is_right

    def greet(self, identity: bytes, header: bytes) -> Optional[WorkerSession]:
        """One step of the handshake; returns a session once the peer has proved that it knows the key.

        Raises:
            WireError: the peer does not know it.
        """
        nonces = self._handshakes.pop(identity, None)
        if nonces is None:
            hello = read_hello(header)
            nonces = hello["nonce"] + os.urandom(NONCE_BYTES)
            if len(self._handshakes) > 10_000:  # unfinished handshakes: the peers may start again
                self._handshakes.clear()
            self._handshakes[identity] = nonces
            answer = {
                "protocol": PROTOCOL,
                "nonce": nonces[NONCE_BYTES:].hex(),
                "proof": proof(self._key, b"server", nonces),
            }
            self.socket.send_multipart([identity, plain(answer)])
            return None
        if not hmac.compare_digest(header, proof(self._key, b"worker", nonces).encode()):
            raise WireError("it does not know this attempt's token")
        return WorkerSession(identity, Seal(self._key, nonces, is_server=True), peer_name="an unknown process")

    def send(
        self, session: WorkerSession, header: Dict[str, Any], frames: Sequence[Any] = (), *, track: bool = False
    ) -> Any:
        """Send; with ``track`` returns a tracker of when the frames' memory is free again.

        Raises:
            zmq.ZMQError: the peer is gone, or does not read.
        """
        head = session.seal.close(header, frames)
        parts = [session.identity, head, *frames]
        return self.socket.send_multipart(parts, flags=zmq.NOBLOCK, copy=False, track=track)


def _split(frames: List[Any], count: int) -> Tuple[List[Any], List[Any]]:
    if len(frames) < count:
        raise WireError("a message with fewer frames than its header says")
    return frames[:count], frames[count:]


def read_hello(header: bytes) -> Dict[str, Any]:
    hello = read_plain(header)
    try:
        nonce = bytes.fromhex(hello["nonce"])
    except (KeyError, TypeError, ValueError) as error:
        raise WireError("a greeting without a nonce") from error
    if len(nonce) != NONCE_BYTES:
        raise WireError("a greeting without a nonce")
    if hello.get("protocol") != PROTOCOL:
        raise WireError(
            f"it speaks version {hello.get('protocol')} of the protocol, this ps {PROTOCOL}: use one version"
        )
    return {"nonce": nonce}
