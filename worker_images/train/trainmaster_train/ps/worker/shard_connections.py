"""A worker's connections to all ps: what is asked of each, what came back, and who is lost.

A ps that is lost is waited for and joined again, and what was asked of it before is given up: so no gradient is
applied twice. Whoever waits for one ps hears, too, when another one says why it ends.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set

import torch
import zmq

from trainmaster_train import steps
from trainmaster_train.ps.errors import DeadlineError, LostError, ParameterServerError
from trainmaster_train.ps.layout import SlabBlock, learning_rates
from trainmaster_train.ps.options import Options
from trainmaster_train.ps.wire.codec import raw
from trainmaster_train.ps.wire.shared_memory import send_descriptor
from trainmaster_train.ps.worker.connection import Connection, Message
from trainmaster_train.ps.worker.gradients import FlatParameters
from trainmaster_train.ps.worker.model_view import ModelView

_MESSAGE_BYTES = 16 << 20


def initialise_shard(
    connection: Connection,
    values: FlatParameters,
    blocks: Sequence[SlabBlock],
    optimizer: torch.optim.Optimizer,
    *,
    ps_count: int,
    timeout_s: float,
) -> None:
    """Give a ps the values of ``blocks`` and its rows of all tables. Raises as :meth:`Connection.answer`."""
    number = connection.reserve()
    at = 0
    while at < len(blocks):
        numbers: List[int] = []
        frames: List[Any] = []
        while at < len(blocks) and sum(frame.nbytes for frame in frames) < _MESSAGE_BYTES:
            numbers.append(at)
            frames.append(raw(values.of(blocks[at]).clone()))
            at += 1
        connection.send({"op": "initialise", "blocks": numbers}, frames, number=number)
    for table in values.layout.tables:
        own = values.parameters[table.name].detach()[connection.ps :: ps_count]
        size = max(1, _MESSAGE_BYTES // (table.columns * table.dtype.itemsize))
        for begin in range(0, len(own), size):
            rows = raw(own[begin : begin + size].cpu().contiguous().clone().flatten())
            connection.send({"op": "initialise", "table": table.name, "begin": begin}, [rows], number=number)
    last = {"op": "initialise", "last": True, "rates": learning_rates(optimizer)}
    connection.send(last, number=number)
    connection.answer(number, timeout_s, "the first values")


_BYE_S = 5.0
# A worker that died with half of its gradient sent is waited for once; twice as long, and the ps are apart.
_CATCH_UP_LOSSES = 2
# As long as all workers catch up, a ps is at most an update ahead of another.
_DIVERGED = 2


class ShardConnections:
    """``connections``: one for each ps. ``versions``: the updates of each, as far as this worker has seen."""

    def __init__(
        self,
        addresses: Sequence[str],
        key: bytes,
        *,
        worker: int,
        view: ModelView,
        optimizer: torch.optim.Optimizer,
        options: Options,
        timer: steps.StepTimer,
    ) -> None:
        """Knows them, and has joined none yet."""
        self._context: "zmq.Context[zmq.Socket[bytes]]" = zmq.Context(io_threads=min(4, max(1, len(addresses))))
        self.connections = [
            Connection(self._context, ps, at, key, self._poll_others) for ps, at in enumerate(addresses)
        ]
        self.versions = [0] * len(addresses)
        self.blocks = [view.values.layout.blocks(ps, len(addresses)) for ps in range(len(addresses))]
        self._sent_rates: List[Optional[List[float]]] = [None] * len(addresses)  # the learning rates that each has
        self._worker = worker
        self._view = view
        self._optimizer = optimizer
        self._options = options
        self._timer = timer
        self._shares_memory = [False] * len(addresses)
        self._push_ids: List[Optional[int]] = [None] * len(addresses)  # numbers of the push that is gathered
        self._lost: Set[int] = set()
        self._is_aligned = True  # the ps are not apart: none came back with older values
        # What this worker is doing, for messages.
        self.own_steps = 0

    def __len__(self) -> int:
        return len(self.connections)

    @property
    def worker_name(self) -> str:
        return f"worker {self._worker}"

    def join(self) -> None:
        """Raises ``ParameterServerError`` where :class:`Servers` does."""
        for ps in range(len(self)):
            self._join_shard(ps)

    def leave(self, header: Mapping[str, Any]) -> None:
        """Say good-bye with ``header`` to all that are there."""
        for connection in self.connections:
            try:
                connection.ask({"op": "bye", **header}, timeout_s=_BYE_S, what="the good-bye")
            except ParameterServerError:
                pass  # it is gone: nobody is left to say good-bye to

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self._context.term()
        if self._view.memory is not None:
            self._view.memory.close()

    # Pushing.

    def begin_push(self) -> None:
        """What is pushed goes to all ps, but those that are lost, and the ones that the others are to draw level with."""
        ahead = self._servers_ahead()
        self._push_ids = [
            None if ps in self._lost or ps in ahead else connection.reserve()
            for ps, connection in enumerate(self.connections)
        ]

    def _servers_ahead(self) -> Set[int]:
        """The ps that are an update ahead of others for good: all workers' gradients for these were lost on the way.

        They are left out of the next step, so that afterwards all are at the same update: else they would stay apart, some
        worker that has heard the same update from all would be late at one of them ever after, and the last checkpoint
        would be of mixed updates. Who does not know that they are apart waits meanwhile, as :meth:`catch_up` has it.
        """
        newest = max(self.versions)
        if self._is_aligned or not self._options.backup_workers or newest - min(self.versions) != 1:
            return set()
        return {ps for ps, version in enumerate(self.versions) if version == newest}

    def forget_push(self) -> None:
        """It was never finished; a ps drops it when the next one comes."""
        self._push_ids = [None] * len(self)

    def push_blocks(self, ps: int, numbers: List[int], frames: List[Any], exponents: List[int]) -> None:
        """Send a part of the push that is gathered. To a ps that shares the memory nothing needs to be sent."""
        if self._shares_memory[ps]:
            self._timer.add_bytes_sent(sum(frame.nbytes for frame in frames))
        else:
            self._send_push(ps, {"blocks": numbers, "exponents": exponents}, frames)

    def push_last(
        self, ps: int, slot: int, header: Mapping[str, Any], frames: List[Any], rates: Optional[List[float]]
    ) -> None:
        """Send what ends a push, whose gradients lie at ``turn`` of the memory; with the learning ``rates`` when they
        are others than that ps has.
        """
        if self._push_ids[ps] is None:
            return
        whole: Dict[str, Any] = {"last": True, **header}
        if self._shares_memory[ps]:
            whole["shared"] = slot
        if rates != self._sent_rates[ps]:
            whole["rates"] = self._sent_rates[ps] = rates
        self._send_push(ps, whole, frames)

    def end_push(self) -> List[Optional[int]]:
        """The numbers to wait for."""
        numbers = list(self._push_ids)
        self.forget_push()
        return numbers

    def _send_push(self, ps: int, header: Dict[str, Any], frames: List[Any]) -> None:
        number = self._push_ids[ps]
        if number is None:  # that ps was lost on the way: the rest of this push has no place any more
            return
        whole = {"op": "push", "version": self.versions[ps], "blocks": [], "exponents": [], **header}
        try:
            self.connections[ps].send(whole, frames, number=number)
            self._timer.add_bytes_sent(sum(frame.nbytes for frame in frames))
        except LostError as error:
            self._note_lost(ps, error)

    # Waiting.

    def ask(self, ps: int, header: Dict[str, Any], frames: List[Any]) -> Optional[int]:
        """Send a request; its number, or ``None`` when that ps is lost."""
        try:
            return self.connections[ps].send(header, frames)
        except LostError as error:
            self._note_lost(ps, error)
            return None

    def wait(self, ps: int, number: Optional[int]) -> Optional[Message]:
        """The answer to request ``number``; ``None`` when that ps was lost since, and has come back by now."""
        try:
            if number is not None and ps not in self._lost and not self.connections[ps].is_stale(number):
                what = f"{self.worker_name}'s step {self.own_steps} (update {self.versions[ps]})"
                with self._timer.part(steps.PS_WAIT):
                    return self.connections[ps].answer(
                        number, self._options.step_timeout_s, what, lambda piece: self._install(ps, piece)
                    )
        except LostError as error:
            self._note_lost(ps, error)
        if ps in self._lost:
            self._join_shard(ps)
        return None

    def finish(self, numbers: Sequence[Optional[int]]) -> List[Dict[str, Any]]:
        """Wait for these answers, and take the values that they bring; what they say of pushes."""
        return [header for header in self._take(numbers) if "outcome" in header]

    def _take(self, numbers: Sequence[Optional[int]]) -> List[Dict[str, Any]]:
        """Wait for these answers, and take the values that they bring; their headers."""
        answers = [
            self.wait(ps, number) if number is not None or ps in self._lost else None
            for ps, number in enumerate(numbers)
        ]
        headers = []
        for ps, answer in enumerate(answers):
            if answer is not None:
                if not answer[0].get("not_yet"):
                    self._install(ps, answer)
                headers.append(answer[0])
        return headers

    def catch_up(self) -> None:
        """Wait until all ps are at the same update, and have its values.

        With backup workers a late gradient brings what each ps has just then, and one may have closed a step that
        another has not. A gradient of mixed updates would count for other steps on each ps: they would drift apart,
        not end at the same update, and the last worker would wait for a step that nobody else takes any more. Those
        whose gradients closed the step have sent them to the other ps, too; so this wait ends without this worker.
        But not where a ps came back with older values, or where nobody is left who would make the step: there each ps
        goes on from where it is, until all are at the same update again.
        """
        if len(set(self.versions)) == 1:
            self._is_aligned = True
        deadline = time.monotonic() + _CATCH_UP_LOSSES * self._options.lost_timeout_s
        while self._is_aligned and len(set(self.versions)) > 1:
            newest = max(self.versions)
            if newest - min(self.versions) >= _DIVERGED and self._have_diverged():
                self._is_aligned = False
                return
            pull = {"op": "pull", "least": newest}
            answers = self._take(
                [self.ask(ps, pull, []) if version < newest else None for ps, version in enumerate(self.versions)]
            )
            waiting = [answer for answer in answers if answer.get("not_yet")]
            # Of those that were not asked one may be lost, and only who asks it hears that.
            is_apart = bool(waiting) and self._have_diverged()
            if is_apart or any(answer["is_stuck"] for answer in waiting) or time.monotonic() > deadline:
                self._is_aligned = len(set(self.versions)) == 1

    def _have_diverged(self) -> bool:
        """Whether the ps are further apart now than they ever are while all workers catch up."""
        observed: List[List[int]] = []
        for _ in range(2):
            numbers = [self.ask(ps, {"op": "status"}, []) for ps in range(len(self))]
            answers = [self.wait(ps, number) for ps, number in enumerate(numbers)]
            observed.append([int(answer[0]["version"]) for answer in answers if answer is not None])
        first, second = observed
        # Between the two times each ps was where it was first, or further, but not further than it was then.
        return len(first) == len(second) == len(self) and max(first) - min(second) >= _DIVERGED

    def _install(self, ps: int, answer: Message) -> None:
        """Have the values of an answer, or of a piece of one, in the model."""
        header, frames = answer
        with self._timer.part(steps.COMMUNICATION):
            self._view.install(self.connections[ps].name, self.blocks[ps], header, frames)
        if not header.get("more"):
            self.versions[ps] = int(header["version"])

    def _note_lost(self, ps: int, error: LostError) -> None:
        if ps not in self._lost:
            print(f"{self.worker_name}: lost a ps ({error}); waiting for it to come back.", flush=True)
            self._lost.add(ps)
            self.connections[ps].close()
        self._shares_memory[ps] = False
        self._push_ids[ps] = None

    def _poll_others(self) -> None:
        """While one ps is waited for: whether another one said why it ends."""
        for connection in self.connections:
            try:
                connection.receive_available()
            except LostError:
                pass  # whoever needs it finds that out

    # Joining.

    def _join_shard(self, ps: int) -> None:
        """Join ``ps``, fill it if it has no values and this is the chief, and take its values."""
        connection = self.connections[ps]
        options = self._options
        deadline = time.monotonic() + options.join_timeout_s
        is_chief = self._worker == 0
        while True:
            try:
                connection.open(max(0.0, deadline - time.monotonic()))
                about = {"worker": self._worker, "name": self.worker_name, "chief": is_chief, "ps": len(self)}
                own = {"mode": options.mode, "wire": options.wire, "signature": self._view.values.layout.signature}
                left_s = max(0.1, deadline - time.monotonic())
                joined, _ = connection.ask({"op": "join", **about, **own}, timeout_s=left_s, what="the greeting")
                if not joined["is_initialised"] and is_chief:
                    initialise_shard(
                        connection,
                        self._view.values,
                        self.blocks[ps],
                        self._optimizer,
                        ps_count=len(self),
                        timeout_s=options.join_timeout_s,
                    )
                self._shares_memory[ps] = self._share_memory(connection, str(joined["fd_socket"]), left_s)
                pull = connection.send({"op": "pull"})
                values = connection.answer_patiently(
                    pull, options.join_timeout_s, "the first pull", lambda piece: self._install(ps, piece)
                )
                break
            except DeadlineError as error:
                raise DeadlineError(
                    f"{self.worker_name}: {error}, after {options.join_timeout_s:.0f} s of waiting; see that ps's log"
                ) from error
            except LostError:
                if time.monotonic() > deadline:
                    raise
        if ps in self._lost:
            self._lost.discard(ps)
            if int(values[0]["version"]) < self.versions[ps]:
                self._is_aligned = False
        self._sent_rates[ps] = None
        self._install(ps, values)

    def _share_memory(self, connection: Connection, socket_name: str, timeout_s: float) -> bool:
        """Whether that ps has the memory now; only one of this machine can."""
        memory = self._view.memory
        if memory is None or not socket_name or not send_descriptor(memory, socket_name, connection.ticket()):
            return False
        header, _ = connection.ask(
            {"op": "share", "slots": memory.slots}, timeout_s=timeout_s, what="the offer of memory"
        )
        return bool(header["is_taken"])
