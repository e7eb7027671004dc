"""Sends the workers their new values, piece by piece.

An answer is a message for each piece of the shard; the last one says what became of the request. The pieces of an
update leave while the optimizer is still at the next ones, and the worker copies them while others are arriving: so
the step, two copies and the sending overlap. A worker that is lost between two pieces of an answer pulls anew.
Who shares its memory with this ps has the pieces written there instead, and is told when all of them are.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Sequence

from trainmaster_train.ps.server.sessions import Session
from trainmaster_train.ps.server.shard import Renewed, Shard
from trainmaster_train.ps.server.snapshots import Copy, Shadow, Snapshots
from trainmaster_train.ps.wire.codec import Codec

# (session, header, frames, track=) -> a tracker of the frames' memory, or None when the session is over
Send = Callable[..., Any]


class Answers:
    def __init__(self, shard: Shard, codec: Codec, send: Send) -> None:
        self._shard = shard
        self._codec = codec
        self._send = send
        self._snapshots = Snapshots(shard)

    def while_applying(self, receivers: Callable[[], Sequence[Session]]) -> Renewed:
        """What :meth:`Shard.apply` is to call, so that the pieces leave at once. ``receivers``: who waits for the update."""

        def renewed(piece: range) -> None:
            # The last one goes with the answer. And compressed answers are a difference, which is made from the whole.
            if piece == self._shard.pieces[-1] or self._codec.is_lossy:
                return
            for session in receivers():
                if session.waits_for_push is None:
                    continue
                if session.memory is not None:
                    session.memory.write(session.turn, piece, self._shard.values)
                else:
                    self._send_piece(session, session.waits_for_push, piece, self._snapshots.coming())
                session.has_pieces = True

        return renewed

    def values(self, session: Session, header: Dict[str, Any]) -> None:
        """Answer with ``header`` and the values, as far as they were not sent while the update was applied."""
        header["version"] = self._shard.version
        if session.shadow is not None:
            frames, header["exponents"] = session.shadow.frames()
            self._send(session, {**header, "is_delta": True}, frames)
            return
        if self._codec.is_lossy:
            session.shadow = Shadow(self._shard, self._codec)
        *others, last = self._shard.pieces or [range(0)]
        if session.memory is not None:
            for piece in [last] if session.has_pieces else [*others, last]:
                session.memory.write(session.turn, piece, self._shard.values)
            session.has_pieces = False
            self._send(session, {**header, "shared": session.turn}, [])
            return
        copy = self._snapshots.current()
        for piece in [] if session.has_pieces else others:
            self._send_piece(session, header["re"], piece, copy)
        session.has_pieces = False
        self._send_with(session, {**header, "first": last.start}, last, copy)

    def forget(self) -> None:
        """The values were set, not updated."""
        self._snapshots.forget()

    def _send_piece(self, session: Session, number: int, piece: range, copy: Copy) -> None:
        self._send_with(session, {"re": number, "first": piece.start, "more": True}, piece, copy)

    def _send_with(self, session: Session, header: Dict[str, Any], piece: range, copy: Copy) -> None:
        copy.track(self._send(session, header, copy.frames(piece), track=True))
