"""A worker's connections to all ps: requests, answers, and recovery of lost connections.

A lost ps is waited for and joined again, and earlier requests to it are given up: so no gradient is applied twice. A
wait for one ps also ends when another one announces its end.
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
from trainmaster_train.ps.worker.gradients import FlatParameters, WorkerModelView

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
    """Send a ps the chief's initial values: ``blocks``, and its rows of all tables. Raises as
    :meth:`Connection.answer`.
    """
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
# A worker that died with half of its gradient sent is waited for once; after twice that time the ps have diverged.
_CATCH_UP_LOSSES = 2
# As long as all workers catch up, a ps is at most one update ahead of another.
_DIVERGED = 2


class ShardConnections:
    """``connections``: one for each ps. ``versions``: the last known update of each."""

    def __init__(
        self,
        addresses: Sequence[str],
        key: bytes,
        *,
        worker: int,
        view: WorkerModelView,
        optimizer: torch.optim.Optimizer,
        options: Options,
        timer: steps.StepTimer,
    ) -> None:
        """Does not connect yet, see :meth:`join`."""
        self._context: "zmq.Context[zmq.Socket[bytes]]" = zmq.Context(io_threads=min(4, max(1, len(addresses))))
        self.connections = [
            Connection(self._context, ps, at, key, self._poll_others) for ps, at in enumerate(addresses)
        ]
        self.versions = [0] * len(addresses)
        self.blocks = [view.values.layout.blocks(ps, len(addresses)) for ps in range(len(addresses))]
        self._sent_rates: List[Optional[List[float]]] = [None] * len(addresses)  # the learning rates that each ps has
        self._worker = worker
        self._view = view
        self._optimizer = optimizer
        self._options = options
        self._timer = timer
        self._shares_memory = [False] * len(addresses)
        self._push_ids: List[Optional[int]] = [None] * len(addresses)  # request numbers of the push in preparation
        self._lost: Set[int] = set()
        self._is_aligned = True  # False while a ps that came back with older values has diverged
        # For messages.
        self.own_steps = 0

    def __len__(self) -> int:
        return len(self.connections)

    @property
    def worker_name(self) -> str:
        return f"worker {self._worker}"

    def join(self) -> None:
        """Connect to all ps. Raises ``ParameterServerError`` as :class:`Servers`."""
        for ps in range(len(self)):
            self._join_shard(ps)

    def leave(self, header: Mapping[str, Any]) -> None:
        """Announce the departure, with ``header``, to all connected ps."""
        for connection in self.connections:
            try:
                connection.ask({"op": "bye", **header}, timeout_s=_BYE_S, purpose="the good-bye")
            except ParameterServerError:
                pass  # the ps is gone

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self._context.term()
        if self._view.memory is not None:
            self._view.memory.close()

    # Pushing.

    def begin_push(self) -> None:
        """Begin a push to all ps, except lost ones and those that are an update ahead of the others."""
        ahead = self._servers_ahead()
        self._push_ids = [
            None if ps in self._lost or ps in ahead else connection.reserve()
            for ps, connection in enumerate(self.connections)
        ]

    def _servers_ahead(self) -> Set[int]:
        """The ps that are permanently one update ahead, because the gradients of all workers for the others were lost.

        They are left out of the next step, so that afterwards all are at the same update. Otherwise they would stay
        apart, a worker with the same update from all would always be late at one of them, and the last checkpoint
        would mix updates. Workers that do not know of the divergence wait meanwhile, see :meth:`catch_up`.
        """
        newest = max(self.versions)
        if self._is_aligned or not self._options.backup_workers or newest - min(self.versions) != 1:
            return set()
        return {ps for ps, version in enumerate(self.versions) if version == newest}

    def abandon_push(self) -> None:
        """Abandon an unfinished push; a ps drops its part when the next push arrives."""
        self._push_ids = [None] * len(self)

    def push_blocks(self, ps: int, numbers: List[int], frames: List[Any], exponents: List[int]) -> None:
        """Send a part of the current push; not needed for a ps that shares the memory."""
        if self._shares_memory[ps]:
            self._timer.add_bytes_sent(sum(frame.nbytes for frame in frames))
        else:
            self._send_push(ps, {"blocks": numbers, "exponents": exponents}, frames)

    def push_last(
        self, ps: int, slot: int, header: Mapping[str, Any], frames: List[Any], rates: Optional[List[float]]
    ) -> None:
        """Send the end of a push, whose gradients lie in ``slot`` of the memory; with the learning ``rates`` if they
        have changed for that ps.
        """
        if self._push_ids[ps] is None:
            return
        full_header: Dict[str, Any] = {"last": True, **header}
        if self._shares_memory[ps]:
            full_header["shared"] = slot
        if rates != self._sent_rates[ps]:
            full_header["rates"] = self._sent_rates[ps] = rates
        self._send_push(ps, full_header, frames)

    def end_push(self) -> List[Optional[int]]:
        """End the push; returns the request numbers to wait for."""
        numbers = list(self._push_ids)
        self.abandon_push()
        return numbers

    def _send_push(self, ps: int, header: Dict[str, Any], frames: List[Any]) -> None:
        number = self._push_ids[ps]
        if number is None:  # that ps was lost meanwhile: the rest of this push is dropped
            return
        full_header = {"op": "push", "version": self.versions[ps], "blocks": [], "exponents": [], **header}
        try:
            self.connections[ps].send(full_header, frames, number=number)
            self._timer.add_bytes_sent(sum(frame.nbytes for frame in frames))
        except LostError as error:
            self._note_lost(ps, error)

    # Waiting.

    def ask(self, ps: int, header: Dict[str, Any], frames: List[Any]) -> Optional[int]:
        """Send a request; returns its number, or ``None`` if that ps is lost."""
        try:
            return self.connections[ps].send(header, frames)
        except LostError as error:
            self._note_lost(ps, error)
            return None

    def wait(self, ps: int, number: Optional[int]) -> Optional[Message]:
        """The answer to request ``number``; ``None`` if that ps was lost since, and is back now."""
        try:
            if number is not None and ps not in self._lost and not self.connections[ps].is_stale(number):
                subject = f"{self.worker_name}'s step {self.own_steps} (update {self.versions[ps]})"
                with self._timer.part(steps.PS_WAIT):
                    return self.connections[ps].answer(
                        number, self._options.step_timeout_s, subject, lambda piece: self._install(ps, piece)
                    )
        except LostError as error:
            self._note_lost(ps, error)
        if ps in self._lost:
            self._join_shard(ps)
        return None

    def finish(self, numbers: Sequence[Optional[int]]) -> List[Dict[str, Any]]:
        """Wait for these answers, and install their values; returns the headers with outcomes of pushes."""
        return [header for header in self._take(numbers) if "outcome" in header]

    def _take(self, numbers: Sequence[Optional[int]]) -> List[Dict[str, Any]]:
        """Wait for these answers, and install their values; returns their headers."""
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
        """Wait until all ps are at the same update, and pull its values.

        With backup workers a late gradient returns the current values of each ps, and one may have closed a step that
        another has not. A gradient of mixed updates would count for different steps on each ps: they would drift apart
        and not end at the same update, and the last worker would wait for a step that no other worker takes any more.
        The workers whose gradients closed the step have sent them to the other ps, too, so this wait ends without
        this worker. It does not end if a ps came back with older values, or if no worker is left to complete the
        step: then each ps continues from its own update, until all are aligned again.
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
            # A ps that was not asked may be lost, which only a request to it detects.
            is_apart = bool(waiting) and self._have_diverged()
            if is_apart or any(answer["is_stuck"] for answer in waiting) or time.monotonic() > deadline:
                self._is_aligned = len(set(self.versions)) == 1

    def _have_diverged(self) -> bool:
        """Whether the ps are further apart than is possible while all workers catch up."""
        observed: List[List[int]] = []
        for _ in range(2):
            numbers = [self.ask(ps, {"op": "status"}, []) for ps in range(len(self))]
            answers = [self.wait(ps, number) for ps, number in enumerate(numbers)]
            observed.append([int(answer[0]["version"]) for answer in answers if answer is not None])
        first, second = observed
        # Between the two samples each ps was at the first version, the second, or in between.
        return len(first) == len(second) == len(self) and max(first) - min(second) >= _DIVERGED

    def _install(self, ps: int, answer: Message) -> None:
        """Install the values of an answer, or of a piece of one, in the model."""
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
        """While one ps is waited for: check whether another one announced its end."""
        for connection in self.connections:
            try:
                connection.receive_available()
            except LostError:
                pass  # the next request to it detects that

    # Joining.

    def _join_shard(self, ps: int) -> None:
        """Join ``ps``, initialise it if it has no values and this is the chief, and pull its values."""
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
                joined, _ = connection.ask({"op": "join", **about, **own}, timeout_s=left_s, purpose="the greeting")
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
        """Offer the shared memory; returns whether the ps took it, which only one on this machine can."""
        memory = self._view.memory
        if memory is None or not socket_name or not send_descriptor(memory, socket_name, connection.ticket()):
            return False
        header, _ = connection.ask(
            {"op": "share", "slots": memory.slots}, timeout_s=timeout_s, purpose="the offer of memory"
        )
        return bool(header["is_taken"])
