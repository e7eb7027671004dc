"""The worker's side: all ps seen as one optimizer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set

import torch
import zmq

from trainmaster_train import report, steps
from trainmaster_train.checkpoint import latest
from trainmaster_train.context import Context
from trainmaster_train.ps.chief import Checkpoints
from trainmaster_train.ps.codec import Codec, read
from trainmaster_train.ps.connection import Connection, Message
from trainmaster_train.ps.embeddings import Embeddings
from trainmaster_train.ps.errors import (
    DeadlineError,
    LostError,
    NonFiniteGradientError,
    ParameterServerError,
)
from trainmaster_train.ps.filling import fill
from trainmaster_train.ps.gradients import Gradients, Values
from trainmaster_train.ps.keeping import load_local
from trainmaster_train.ps.layout import layout_of, learning_rates
from trainmaster_train.ps.memory import keep_freed_memory
from trainmaster_train.ps.options import Options
from trainmaster_train.ps.rounds import Staleness
from trainmaster_train.ps.shard import check_optimizer

REPORT_EVERY = 10  # own steps
_BYE_S = 5.0


class Servers:
    """All ps of the job, used as the optimizer of an ordinary training loop::

        while servers.version < 1000:
            servers.zero_grad()
            loss(model(batch)).backward()
            servers.step()

    ``version`` counts the updates of the first ps, by all workers: the job's step. ``own_steps`` counts this worker's.
    Where its time goes is told to :func:`trainmaster_train.steps.timer`. A ps that is lost is waited for (``join_timeout_s``), and the gradient
    that was on its way to it is given up: so none is applied twice.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        context: Context,
        key: bytes,
        options: Options,
    ) -> None:
        """Join all ps: give them the first values if this is the chief and they have none, and take theirs.

        ``optimizer`` is never stepped: the ps make theirs like it, and the chief's learning rates are followed, so
        that a scheduler on it works as always.

        Raises:
            ParameterServerError: a ps did not come, or has another model, other options, or another token.
        """
        check_optimizer(optimizer)
        keep_freed_memory()
        self.model = model
        self.options = options
        self.worker = context.rank or 0
        self.is_chief = self.worker == 0
        self.staleness = Staleness()
        self.own_steps = 0
        self._timer = steps.timer()
        self._who = f"worker {self.worker}"
        self.optimizer = optimizer
        self._layout = layout_of(model, optimizer)
        self._codec = Codec(options.wire, options.topk_ratio)
        addresses = context.peers.get("ps", ())
        self._context: "zmq.Context[zmq.Socket[bytes]]" = zmq.Context(io_threads=min(4, max(1, len(addresses))))
        self._connections = [Connection(self._context, ps, at, key) for ps, at in enumerate(addresses)]
        self._blocks = [self._layout.blocks(ps, len(addresses)) for ps in range(len(addresses))]
        self._values = Values(model, self._layout)
        self._gradients = Gradients(self._values, self._codec, self._blocks, copies=2 if options.prefetch else 1)
        self._embeddings = Embeddings(model, self._layout, len(addresses), self._ask, self._await)
        self._versions = [0] * len(addresses)
        self._rates_sent: List[Optional[List[float]]] = [None] * len(addresses)
        self._pushes: List[Optional[int]] = [None] * len(addresses)  # numbers of the push that is gathered
        self._on_the_way: List[Optional[int]] = [None] * len(addresses)  # and of the one before
        self._lost: Set[int] = set()
        self._until: Optional[int] = None
        self._checkpoints: Optional[Checkpoints] = None
        try:
            for ps in range(len(addresses)):
                self._enter(ps)
        except BaseException:
            self._disconnect()
            raise
        start = latest() if self.version else None
        if start is not None:
            load_local(model, start)
        if self.version:
            print(f"{self._who} joined at update {self.version}.", flush=True)
        if self.is_chief:
            self._checkpoints = Checkpoints(self._connections, model, options, after=self.version)
        if options.overlap:
            self._hook()

    @property
    def version(self) -> int:
        return self._versions[0]

    @property
    def versions(self) -> Sequence[int]:
        """The updates of each ps, as far as this worker has seen."""
        return tuple(self._versions)

    def zero_grad(self) -> None:
        """Forget all gradients of the model."""
        if self._gradients.is_begun:  # of a push that was never finished; a ps drops it when the next one comes
            self._gradients.begin()
            self._pushes = [None] * len(self._connections)
        self.model.zero_grad(set_to_none=True)

    def step(self, **metrics: Any) -> int:
        """Push the gradients that lie in the model, and have the new values in it; the job's step.

        In the chief also: writes a checkpoint when one is due, and reports ``metrics`` (numbers, such as
        ``loss=loss``) as the job's progress.

        Raises:
            NonFiniteGradientError: a gradient holds NaN or infinity; nothing of it was applied.
            ParameterServerError: a ps did not come back, or somebody did not answer in time.
        """
        self._values.check()
        try:
            with self._timer.part(steps.COMMUNICATION):
                self._push()
        except NonFiniteGradientError as error:
            raise self._named(error) from error
        if self.options.prefetch:
            waited, self._on_the_way = self._on_the_way, list(self._pushes)
        else:
            waited = list(self._pushes)
        self._pushes = [None] * len(self._connections)
        self._finish(waited)
        self.own_steps += 1
        # What torch's schedulers look at to warn of a step() that they missed; the ps made it.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001
        if self._checkpoints is not None:
            if self.own_steps % REPORT_EVERY == 0:
                self._report(metrics)
            with self._timer.part(steps.CHECKPOINT):
                self._checkpoints.after_step(self._versions, metrics, is_last=self._is_last())
        self._timer.end_step()
        return self.version

    def steps(self, until: int) -> Iterator[int]:
        """The job's step, again and again until all workers together have made ``until`` updates. Clears the
        gradients before each; the loop's body ends with :meth:`step`.
        """
        self._until = until
        while self.version < until:
            self.zero_grad()
            yield self.version

    def prefetch(self, module: torch.nn.Module, indices: torch.Tensor) -> None:
        """Ask for the rows of an embedding (with ``sparse=True``) that the next input ``indices`` needs, now."""
        self._embeddings.prefetch(module, indices)

    def pull(self, *, tables: bool = False) -> int:
        """Have the newest values in the model; with ``tables`` all rows of all embeddings, too. The job's step."""
        self._finish(self._on_the_way)
        self._on_the_way = [None] * len(self._connections)
        numbers = [self._ask(ps, {"op": "pull"}, []) for ps in range(len(self._connections))]
        self._finish(numbers)
        if tables:
            self._embeddings.fetch_all()
        return self.version

    def checkpoint(self, **metrics: Any) -> Path:
        """Write a checkpoint of all ps, and wait for it. In the chief alone.

        Raises:
            CheckpointError: a ps could not write its shard; earlier checkpoints are as they were.
        """
        if self._checkpoints is None:
            raise ParameterServerError(f"{self._who} is not the chief: checkpoints are made in worker 0 alone")
        self._finish(self._on_the_way)
        self._on_the_way = [None] * len(self._connections)
        return self._checkpoints.write(self._versions, metrics)

    def close(self, *, is_done: bool = True, why: str = "") -> None:
        """Leave all ps; ``is_done``: the whole training is. What is on its way is waited for."""
        if is_done:
            self._finish(self._on_the_way)
            if self._checkpoints is not None:
                self._checkpoints.finish()
        for connection in self._connections:
            try:
                bye = {"op": "bye", "why": why, "is_done": is_done and self.is_chief}
                connection.ask(bye, timeout_s=_BYE_S, what="the good-bye")
            except ParameterServerError:
                pass  # it is gone: nobody is left to say good-bye to
        self._disconnect()

    def status(self) -> List[Dict[str, Any]]:
        """What each ps counted: version, pushes, staleness, what was dropped, and who is missing."""
        return [
            connection.ask({"op": "status"}, timeout_s=self.options.step_timeout_s, what="for its status")[0]
            for connection in self._connections
        ]

    def _disconnect(self) -> None:
        for connection in self._connections:
            connection.close()
        self._context.term()

    def _is_last(self) -> bool:
        return self._until is not None and self.version >= self._until

    def _report(self, metrics: Dict[str, Any]) -> None:
        step = self.version if self._until is None else min(self.version, self._until)
        report.progress(step, self._until, dropped=self.staleness.dropped, **metrics)

    # Pushing.

    def _hook(self) -> None:
        def taken(name: str) -> Any:
            def after(parameter: torch.Tensor) -> None:
                if self._gradients.has_taken(name):
                    raise ParameterServerError(
                        f"a second gradient of `{name}` before step(): with overlap=True one backward pass makes one step"
                    )
                self._begin()
                if parameter.grad is not None:
                    try:
                        self._gradients.take(name, parameter.grad, self._send_blocks)
                    except NonFiniteGradientError as error:
                        raise self._named(error) from error

            return after

        for slab in self._layout.slabs:
            for member in slab.members:
                self._values.parameters[member.name].register_post_accumulate_grad_hook(taken(member.name))  # type: ignore[no-untyped-call]

    def _named(self, error: NonFiniteGradientError) -> NonFiniteGradientError:
        return NonFiniteGradientError(
            f"{self._who}, own step {self.own_steps}, update {self.version}: the gradient of {error} "
            "holds NaN or infinity; lower the learning rate, or clip before step()"
        )

    def _begin(self) -> None:
        if not self._gradients.is_begun:
            self._gradients.begin()
            self._pushes = [connection.reserve() for connection in self._connections]

    def _push(self) -> None:
        self._begin()
        self._embeddings.gather()
        self._gradients.finish(self._send_blocks)
        rates = learning_rates(self.optimizer) if self.is_chief else None
        for ps in range(len(self._connections)):
            tables, frames = self._embeddings.gradients(ps)
            header: Dict[str, Any] = {"last": True, "tables": tables}
            if rates != self._rates_sent[ps]:
                header["rates"] = self._rates_sent[ps] = rates
            self._send_push(ps, header, frames)

    def _send_blocks(self, ps: int, numbers: List[int], frames: List[Any], exponents: List[int]) -> None:
        self._send_push(ps, {"blocks": numbers, "exponents": exponents}, frames)

    def _send_push(self, ps: int, header: Dict[str, Any], frames: List[Any]) -> None:
        number = self._pushes[ps]
        if number is None:  # that ps was lost on the way: the rest of this push has no place any more
            return
        whole = {"op": "push", "version": self._versions[ps], "blocks": [], "exponents": [], **header}
        try:
            self._connections[ps].send(whole, frames, number=number)
            self._timer.add_bytes_sent(sum(frame.nbytes for frame in frames))
        except LostError as error:
            self._note_lost(ps, error)

    # Waiting.

    def _ask(self, ps: int, header: Dict[str, Any], frames: List[Any]) -> Optional[int]:
        try:
            return self._connections[ps].send(header, frames)
        except LostError as error:
            self._note_lost(ps, error)
            return None

    def _await(self, ps: int, number: Optional[int]) -> Optional[Message]:
        """The answer to request ``number``; ``None`` when that ps was lost, and has come back by now."""
        try:
            if number is not None and ps not in self._lost:
                what = f"{self._who}'s step {self.own_steps} (update {self._versions[ps]})"
                with self._timer.part(steps.PS_WAIT):
                    return self._connections[ps].answer(
                        number, self.options.step_timeout_s, what, lambda piece: self._install(ps, piece)
                    )
        except LostError as error:
            self._note_lost(ps, error)
        if ps in self._lost:
            self._enter(ps)
        return None

    def _finish(self, numbers: Sequence[Optional[int]]) -> None:
        """Wait for these answers, and take the values that they bring."""
        answers = [
            self._await(ps, number) if number is not None or ps in self._lost else None
            for ps, number in enumerate(numbers)
        ]
        outcomes = []
        for ps, answer in enumerate(answers):
            if answer is not None:
                self._install(ps, answer)
                if "outcome" in answer[0]:
                    outcomes.append(answer[0])
        dropped = [outcome["outcome"] for outcome in outcomes if outcome["outcome"] != "applied"]
        if dropped:
            self.staleness.late += "late" in dropped
            self.staleness.too_stale += "too_stale" in dropped
        elif outcomes:
            stalest = max(outcome["staleness"] for outcome in outcomes)
            self.staleness.note(stalest)
            self._timer.add_staleness(stalest)

    def _install(self, ps: int, answer: Message) -> None:
        """Have the values of an answer, or of a piece of one, in the model."""
        header, frames = answer
        with self._timer.part(steps.COMMUNICATION):
            if header.get("is_delta"):
                self._add(ps, header["exponents"], frames)
            else:
                for block, frame in zip(self._blocks[ps][header["first"] :], frames):
                    dtype = self._layout.slabs[block.slab].dtype
                    self._values.set(block, read(frame, dtype, block.end - block.begin))
        if not header.get("more"):
            self._versions[ps] = int(header["version"])

    def _add(self, ps: int, exponents: Sequence[int], frames: Sequence[Any]) -> None:
        at = 0
        for block, exponent in zip(self._blocks[ps], exponents):
            dtype = self._layout.slabs[block.slab].dtype
            count = self._codec.frame_count(dtype)
            self._values.add(
                block, self._codec.decode(frames[at : at + count], block.end - block.begin, dtype, exponent)
            )
            at += count

    def _note_lost(self, ps: int, error: LostError) -> None:
        if ps not in self._lost:
            print(f"{self._who}: lost a ps ({error}); waiting for it to come back.", flush=True)
            self._lost.add(ps)
            self._connections[ps].close()
        self._pushes[ps] = None

    # Joining.

    def _enter(self, ps: int) -> None:
        """Join ``ps``, fill it if it has no values and this is the chief, and take its values."""
        connection = self._connections[ps]
        deadline = time.monotonic() + self.options.join_timeout_s
        while True:
            try:
                connection.open(max(0.0, deadline - time.monotonic()))
                about = {"worker": self.worker, "who": self._who, "chief": self.is_chief, "ps": len(self._connections)}
                own = {"mode": self.options.mode, "wire": self.options.wire, "signature": self._layout.signature}
                left_s = max(0.1, deadline - time.monotonic())
                joined, _ = connection.ask({"op": "join", **about, **own}, timeout_s=left_s, what="the greeting")
                if not joined["is_filled"] and self.is_chief:
                    fill(
                        connection,
                        self._values,
                        self._blocks[ps],
                        self.optimizer,
                        ps_count=len(self._connections),
                        timeout_s=self.options.join_timeout_s,
                    )
                pull = connection.send({"op": "pull"})
                values = connection.answer_patiently(
                    pull, self.options.join_timeout_s, "the first pull", lambda piece: self._install(ps, piece)
                )
                break
            except DeadlineError as error:
                raise DeadlineError(
                    f"{self._who}: {error}, after {self.options.join_timeout_s:.0f} s of waiting; see that ps's log"
                ) from error
            except LostError:
                if time.monotonic() > deadline:
                    raise
        self._lost.discard(ps)
        self._rates_sent[ps] = None
        self._install(ps, values)
