"""When gradients become updates, and who is told: between the connections of a ps and its shard.

Holds back what may not be applied while a checkpoint is taken, answers pushes with the new values and pulls when there
are values to give, and knows in words who is waited for.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

import zmq

from trainmaster_train.ps.checkpoint.shard_writer import ShardWriter
from trainmaster_train.ps.errors import ParameterServerError
from trainmaster_train.ps.options import Options
from trainmaster_train.ps.server.aggregation import GradientAggregator, Push, PushResult
from trainmaster_train.ps.server.membership import WorkerMembership
from trainmaster_train.ps.server.pull_responses import PullResponses, Send
from trainmaster_train.ps.server.sessions import WorkerSession
from trainmaster_train.ps.server.shard import OnUpdated, Shard, no_memory
from trainmaster_train.ps.wire.codec import Codec

LOG_EVERY = 200  # updates


class UpdateScheduler:
    """``is_filled``: the shard has values. ``saving``: its part in checkpoints, whose answers the caller sends."""

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
        """``sessions``: who is there now, by identity; the caller's own."""
        self.is_initialised = is_initialised
        self._shard = shard
        self._options = options
        self._membership = membership
        self._sessions = sessions
        self._shard_writer = shard_writer
        self._aggregator = GradientAggregator(shard, options)
        self._send = send
        self._responses = PullResponses(shard, codec, send)
        self._ready: List[Push] = []  # whole, but held back

    @property
    def counts(self) -> Dict[str, Any]:
        """Staleness and what was dropped."""
        return self._aggregator.staleness.as_dict()

    @property
    def summary(self) -> str:
        return str(self._aggregator.staleness)

    def mark_initialised(self) -> None:
        """The first values are here."""
        self.is_initialised = True
        self._responses.forget()
        self.answer_pulls()

    def push(self, push: Push) -> None:
        """Take a whole gradient, and apply it when its turn comes."""
        self._ready.append(push)
        self.proceed()

    def forget(self, worker: int) -> None:
        """The connection of ``worker`` is over: what it sent and was not applied may lie in memory that it uses again."""
        self._ready = [push for push in self._ready if push.worker != worker]

    def proceed(self) -> None:
        """Apply what can be applied, and save where that was asked for.

        Raises:
            ParameterServerError: an update failed half way: what is left of the values is not to be trained on.
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
        """Give values to those who wait for them; ``at_once``: who wants an update that is not made yet is told so, without
        values, so that nobody hears nothing for long.
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
        """Who is missing, in words; empty when nobody waits for anybody."""
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
        """Whether nobody is left who would make the next update: each worker waits for it, or has given its gradient."""
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
        """Tell the workers what became of their gradients, and give them the new values."""
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
