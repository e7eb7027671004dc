"""Schedules the updates of a ps: between its connections and its shard.

Holds back gradients while a checkpoint is taken, answers pushes with the new values and pulls once there are values,
and describes the workers that are waited for.

A response is one message for each piece of the shard; the last one also has the outcome of the request. The pieces of
an update are sent while the optimizer still computes the next ones, and the worker copies them while others arrive: so
the step, two copies and the sending overlap. A worker that is lost between two pieces of a response pulls again. For a
worker that shares its memory with this ps, the pieces are written there, and only the last message is sent.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import zmq

from trainmaster_train.ps.checkpoint.shard_writer import ShardWriter
from trainmaster_train.ps.errors import ParameterServerError
from trainmaster_train.ps.options import Options
from trainmaster_train.ps.server.aggregation import GradientAggregator, Push, PushResult, WorkerMembership
from trainmaster_train.ps.server.sessions import SnapshotBuffer, SnapshotPool, WorkerReplica, WorkerSession
from trainmaster_train.ps.server.shard import OnUpdated, Shard, no_memory
from trainmaster_train.ps.wire.codec import Codec

LOG_EVERY = 200  # updates

# (session, header, frames, track=) -> a tracker of the frames' memory, or None when the session is over
Send = Callable[..., Any]


class PullResponses:
    """Sends the workers the new values, piece by piece."""

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
        *first_pieces, last = self._shard.pieces or [range(0)]
        if session.memory is not None:
            for piece in [last] if session.are_pieces_sent else [*first_pieces, last]:
                session.memory.write(session.slot, piece, self._shard.values)
            session.are_pieces_sent = False
            self._send(session, {**header, "shared": session.slot}, [])
            return
        copy = self._snapshots.current()
        for piece in [] if session.are_pieces_sent else first_pieces:
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


class UpdateScheduler:
    """``is_initialised``: the shard has values. ``shard_writer``: the caller sends its answers."""

    def __init__(
        self,
        shard: Shard,
        options: Options,
        *,
        membership: WorkerMembership,
        sessions: Mapping[bytes, WorkerSession],
        codec: Codec,
        shard_writer: ShardWriter,
        send: Send,
        is_initialised: bool,
    ) -> None:
        """``sessions``: the current ones by identity; the caller updates the mapping."""
        self.is_initialised = is_initialised
        self._shard = shard
        self._options = options
        self._membership = membership
        self._sessions = sessions
        self._shard_writer = shard_writer
        self._aggregator = GradientAggregator(shard, options)
        self._send = send
        self._responses = PullResponses(shard, codec, send)
        self._ready: List[Push] = []  # complete, but held back

    @property
    def counts(self) -> Dict[str, Any]:
        """Staleness, and counts of dropped gradients."""
        return self._aggregator.staleness.as_dict()

    @property
    def summary(self) -> str:
        return str(self._aggregator.staleness)

    def mark_initialised(self) -> None:
        """Note that the first values have arrived."""
        self.is_initialised = True
        self._responses.invalidate_snapshots()
        self.answer_pulls()

    def push(self, push: Push) -> None:
        """Take a complete gradient, and apply it in its turn."""
        self._ready.append(push)
        self.proceed()

    def drop_pushes(self, worker: int) -> None:
        """Drop pushes of ``worker``, whose connection is lost: they may lie in memory that it reuses."""
        self._ready = [push for push in self._ready if push.worker != worker]

    def proceed(self) -> None:
        """Apply what can be applied, and save if requested.

        Raises:
            ParameterServerError: an update failed half way: the values are inconsistent.
        """
        try:
            with no_memory("an update"):
                self._apply()
        except (MemoryError, ParameterServerError, zmq.ZMQError):
            raise
        except Exception as error:
            raise ParameterServerError(
                f"ps {self._shard.ps} could not apply update {self._shard.version + 1} "
                f"({type(error).__name__}: {error}); start again from the last checkpoint"
            ) from error

    def answer_pulls(self, *, at_once: bool = False) -> None:
        """Answer pending pulls; ``at_once``: also those for an update that does not exist yet, without values, so that
        no worker waits without a message for long.
        """
        is_stuck = at_once and self._is_stuck()
        for session in list(self._sessions.values()):
            may = session.is_chief or self._shard.version >= self._options.warmup_updates
            if not session.pending_pulls or not self.is_initialised or not may:
                continue
            waiting, session.pending_pulls = session.pending_pulls, []
            for pull in waiting:
                if self._shard.version >= pull.least:
                    session.replica = None
                    self._responses.send_values(session, {"re": pull.number})
                elif at_once:
                    self._send(session, {"re": pull.number, "not_yet": True, "is_stuck": is_stuck})
                else:
                    session.pending_pulls.append(pull)

    def waiting_for(self) -> str:
        """The missing workers, in words; empty if none is waited for."""
        now = time.monotonic()
        if not self.is_initialised:
            return "the first values of the chief (worker 0)"
        if self._shard.version < self._options.warmup_updates:
            done = f"{self._shard.version} of {self._options.warmup_updates}"
            return f"the end of the warm-up, in which the chief (worker 0) trains alone: {done} updates"
        if self._options.mode == "sync" and self._aggregator.contributors:
            absent = [worker for worker in self._expected() if worker not in self._aggregator.contributors]
            return self._membership.describe(absent, now) if absent else ""
        absent = self._membership.absent()
        return self._membership.describe(absent, now) if len(absent) == self._membership.count else ""

    def _is_stuck(self) -> bool:
        """Whether no worker is left to complete the next update: each waits for it, or has pushed its gradient."""
        return not self._shard_writer.is_paused and all(
            worker in self._aggregator.contributors or self._waits_for_update(worker) for worker in self._expected()
        )

    def _waits_for_update(self, worker: int) -> bool:
        session = self._session_of(worker)
        return session is not None and any(pull.least > self._shard.version for pull in session.pending_pulls)

    def _apply(self) -> None:
        while True:
            self._shard_writer.proceed()
            if self._shard_writer.is_paused:
                return
            if self._ready:
                push = self._ready.pop(0)
                result = self._aggregator.take(push, self._updated_callback([push.worker]))
                if result is not None:
                    self._answer([result])
            elif not self._aggregator.contributors:
                return
            if self._aggregator.contributors:
                if self._aggregator.is_complete(self._expected()):
                    self._answer(self._aggregator.close(self._updated_callback(list(self._aggregator.contributors))))
                elif not self._ready:
                    return

    def _answer(self, results: Sequence[PushResult]) -> None:
        """Send the workers the outcome of their pushes, and the new values."""
        for result in results:
            session = self._session_of(result.worker)
            if session is not None and session.pending_push is not None:
                header = {"re": session.pending_push, "outcome": result.outcome, "staleness": result.staleness}
                session.pending_push = None
                self._responses.send_values(session, header)
        if self._shard.version % LOG_EVERY == 0 and any(v.outcome == "applied" for v in results):
            print(f"ps {self._shard.ps}: update {self._shard.version}: {self._aggregator.staleness}.", flush=True)
        self.answer_pulls()

    def _updated_callback(self, workers: Sequence[int]) -> OnUpdated:
        return self._responses.send_while_applying(lambda: [s for s in map(self._session_of, workers) if s is not None])

    def _expected(self) -> List[int]:
        if self._shard.version < self._options.warmup_updates:
            return [0]
        return self._membership.expected(time.monotonic())

    def _session_of(self, worker: int) -> Optional[WorkerSession]:
        identity = self._membership.identity_of(worker)
        return self._sessions.get(identity) if identity is not None else None
