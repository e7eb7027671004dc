"""Sends the workers their new values, piece by piece.

An answer is a message for each piece of the shard; the last one says what became of the request. The pieces of an
update leave while the optimizer is still at the next ones, and the worker copies them while others are arriving: so
the step, two copies and the sending overlap. A worker that is lost between two pieces of an answer pulls anew.
Who shares its memory with this ps has the pieces written there instead, and is told when all of them are.
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
        """What :meth:`Shard.apply` is to call, so that the pieces leave at once. ``receivers``: who waits for the update."""

        def on_updated(piece: range) -> None:
            # The last one goes with the answer. And compressed answers are a difference, which is made from the whole.
            if piece == self._shard.pieces[-1] or self._codec.is_lossy:
                return
            for session in receivers():
                if session.pending_push is None:
                    continue
                if session.memory is not None:
                    session.memory.write(session.slot, piece, self._shard.values)
                else:
                    self._send_piece(session, session.pending_push, piece, self._snapshots.coming())
                session.are_pieces_sent = True

        return on_updated

    def send_values(self, session: WorkerSession, header: Dict[str, Any]) -> None:
        """Answer with ``header`` and the values, as far as they were not sent while the update was applied."""
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

    def forget(self) -> None:
        """The values were set, not updated."""
        self._snapshots.forget()

    def _send_piece(self, session: WorkerSession, number: int, piece: range, copy: SnapshotBuffer) -> None:
        self._send_with(session, {"re": number, "first": piece.start, "more": True}, piece, copy)

    def _send_with(self, session: WorkerSession, header: Dict[str, Any], piece: range, copy: SnapshotBuffer) -> None:
        copy.track(self._send(session, header, copy.frames(piece), track=True))
