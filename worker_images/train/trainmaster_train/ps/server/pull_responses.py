"""Sends the workers the new values, piece by piece.

A response is one message for each piece of the shard; the last one also has the outcome of the request. The pieces of
an update are sent while the optimizer still computes the next ones, and the worker copies them while others arrive: so
the step, two copies and the sending overlap. A worker that is lost between two pieces of a response pulls again. For a
worker that shares its memory with this ps, the pieces are written there, and only the last message is sent.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Sequence

from trainmaster_train.ps.server.sessions import WorkerSession
from trainmaster_train.ps.server.shard import OnUpdated, Shard
from trainmaster_train.ps.server.snapshots import SnapshotBuffer, SnapshotPool, WorkerReplica
from trainmaster_train.ps.wire.codec import Codec

# (session, header, frames, track=) -> a tracker of the frames' memory, or None when the session is over
Send = Callable[..., Any]


class PullResponses:
    def __init__(self, shard: Shard, codec: Codec, send: Send) -> None:
        self._shard = shard
        self._codec = codec
        self._send = send
        self._snapshots = SnapshotPool(shard)

    def send_while_applying(self, receivers: Callable[[], Sequence[WorkerSession]]) -> OnUpdated:
        """A callback for :meth:`Shard.apply` that sends each piece at once. ``receivers``: sessions that wait for the
        update.
        """

        def on_updated(piece: range) -> None:
            # The last piece is sent with the outcome. Compressed responses are differences, computed from the whole
            # shard.
            if piece == self._shard.pieces[-1] or self._codec.is_lossy:
                return
            for session in receivers():
                if session.pending_push is None:
                    continue
                if session.memory is not None:
                    session.memory.write(session.slot, piece, self._shard.values)
                else:
                    self._send_piece(session, session.pending_push, piece, self._snapshots.upcoming())
                session.are_pieces_sent = True

        return on_updated

    def send_values(self, session: WorkerSession, header: Dict[str, Any]) -> None:
        """Respond with ``header`` and the values that were not sent while the update was applied."""
        header["version"] = self._shard.version
        if session.replica is not None:
            frames, header["exponents"] = session.replica.frames()
            self._send(session, {**header, "is_delta": True}, frames)
            return
        if self._codec.is_lossy:
            session.replica = WorkerReplica(self._shard, self._codec)
        *others, last = self._shard.pieces or [range(0)]
        if session.memory is not None:
            for piece in [last] if session.are_pieces_sent else [*others, last]:
                session.memory.write(session.slot, piece, self._shard.values)
            session.are_pieces_sent = False
            self._send(session, {**header, "shared": session.slot}, [])
            return
        copy = self._snapshots.current()
        for piece in [] if session.are_pieces_sent else others:
            self._send_piece(session, header["re"], piece, copy)
        session.are_pieces_sent = False
        self._send_with(session, {**header, "first": last.start}, last, copy)

    def invalidate_snapshots(self) -> None:
        """Discard snapshots: the values were set without an update."""
        self._snapshots.invalidate()

    def _send_piece(self, session: WorkerSession, number: int, piece: range, copy: SnapshotBuffer) -> None:
        self._send_with(session, {"re": number, "first": piece.start, "more": True}, piece, copy)

    def _send_with(self, session: WorkerSession, header: Dict[str, Any], piece: range, copy: SnapshotBuffer) -> None:
        copy.track(self._send(session, header, copy.frames(piece), track=True))
