"""The worker's side: all ps, used as one optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

import torch

from trainmaster_train import report, steps
from trainmaster_train.context import Context
from trainmaster_train.ps.checkpoint.chief import CheckpointCoordinator
from trainmaster_train.ps.checkpoint.shard_checkpoint import load_local, newest_undamaged
from trainmaster_train.ps.errors import NonFiniteGradientError, ParameterServerError
from trainmaster_train.ps.layout import layout_of, learning_rates
from trainmaster_train.ps.options import Options
from trainmaster_train.ps.server.aggregation import Staleness
from trainmaster_train.ps.server.shard import check_optimizer
from trainmaster_train.ps.wire.codec import Codec
from trainmaster_train.ps.wire.shared_memory import create_shared_memory, is_local_address, retain_freed_memory
from trainmaster_train.ps.worker.embeddings import Embeddings
from trainmaster_train.ps.worker.gradients import FlatGradients, FlatParameters, WorkerModelView
from trainmaster_train.ps.worker.shard_connections import ShardConnections

REPORT_EVERY = 10  # own steps


class Servers:
    """All ps of the job, used as the optimizer of an ordinary training loop::

        while servers.version < 1000:
            servers.zero_grad()
            loss(model(batch)).backward()
            servers.step()

    ``version`` counts the updates of the first ps, by all workers: the job's step. ``own_steps`` counts this worker's.
    :func:`trainmaster_train.steps.timer` measures where the time goes. A lost ps is waited for (``join_timeout_s``),
    and the gradient in flight to it is given up: so none is applied twice.
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
        """Join all ps: the chief initialises those without values; then pull the current values.

        ``optimizer`` is never stepped: the ps create theirs like it and follow the chief's learning rates, so that a
        scheduler on it works as usual.

        Raises:
            ParameterServerError: a ps did not come, or has another model, other options, or another token; or an option
                has an invalid value.
        """
        options.check()
        check_optimizer(optimizer)
        retain_freed_memory()
        self.model = model
        self.options = options
        self.worker = context.rank or 0
        self.is_chief = self.worker == 0
        self.staleness = Staleness()
        self._timer = steps.timer()
        self.optimizer = optimizer
        self._layout = layout_of(model, optimizer)
        addresses = context.peers.get("ps", ())
        codec = Codec(options.wire, options.topk_ratio)
        slots = 2 if options.prefetch else 1
        may_share = options.shared_memory and not codec.is_lossy and any(map(is_local_address, addresses))
        memory = create_shared_memory(self._layout, slots) if may_share else None
        # Without answers during the computation, a ps may write directly into the model's memory.
        self._values = FlatParameters(
            model, self._layout, memory.values[0] if memory is not None and slots == 1 else None
        )
        self._shards = ShardConnections(
            addresses,
            key,
            worker=self.worker,
            view=WorkerModelView(self._values, codec, memory),
            optimizer=optimizer,
            options=options,
            timer=self._timer,
        )
        flats = memory.gradients if memory is not None else None
        self._gradients = FlatGradients(self._values, codec, self._shards.blocks, slots=slots, flats=flats)
        self._embeddings = Embeddings(model, self._layout, len(addresses), self._shards.ask, self._shards.wait)
        self._in_flight: List[Optional[int]] = [None] * len(addresses)  # the previous push
        self._until: Optional[int] = None
        self._checkpoints: Optional[CheckpointCoordinator] = None
        try:
            self._shards.join()
            if options.backup_workers:
                self._shards.catch_up()
        except BaseException:
            self._shards.close()
            raise
        start = newest_undamaged(self._shards.worker_name) if self.version else None
        if start is not None:
            load_local(model, start)
        if self.version:
            print(f"{self._shards.worker_name} joined at update {self.version}.", flush=True)
        if self.is_chief:
            self._checkpoints = CheckpointCoordinator(self._shards.connections, model, options, after=self.version)
        if options.overlap:
            self._register_hooks()

    @property
    def own_steps(self) -> int:
        return self._shards.own_steps

    @property
    def version(self) -> int:
        return self._shards.versions[0]

    @property
    def versions(self) -> Sequence[int]:
        """The last known update of each ps."""
        return tuple(self._shards.versions)

    def zero_grad(self) -> None:
        """Clear all gradients of the model."""
        if self._gradients.is_started:  # of a push that was never finished
            self._abandon_push()
        self.model.zero_grad(set_to_none=True)

    def step(self, **metrics: Any) -> int:
        """Push the model's gradients, and pull the new values; returns the job's step.

        The chief also writes a checkpoint when one is due, and reports ``metrics`` (numbers, such as ``loss=loss``) as
        the job's progress.

        Raises:
            NonFiniteGradientError: a gradient holds NaN or infinity; nothing of it was applied.
            ParameterServerError: a ps did not come back, or a replica did not answer in time.
        """
        self._values.check()
        try:
            with self._timer.part(steps.COMMUNICATION):
                self._push()
        except NonFiniteGradientError as error:
            self._abandon_push()
            raise self._with_context(error) from error
        waited = self._shards.end_push()
        if self.options.prefetch:
            waited, self._in_flight = self._in_flight, waited
        self._finish(waited)
        self._shards.own_steps += 1
        # torch's schedulers check this to warn of a missing step(); the ps made it.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001
        if self._checkpoints is not None:
            if self.own_steps % REPORT_EVERY == 0:
                self._report(metrics)
            with self._timer.part(steps.CHECKPOINT):
                self._checkpoints.after_step(self._shards.versions, metrics, is_last=self._is_last())
        self._timer.end_step()
        return self.version

    def steps(self, until: int) -> Iterator[int]:
        """Yield the job's step until all workers together have made ``until`` updates. Clears the gradients before
        each; the loop's body ends with :meth:`step`.

        In ``async`` mode every other worker may be in the middle of a step at the last update, and its gradient is
        applied as well: so the job makes up to workers − 1 more updates (with ``prefetch``, where each has another
        push in flight, 2 · workers − 1).
        """
        self._until = until
        while self.version < until:
            self.zero_grad()
            yield self.version

    def prefetch(self, module: torch.nn.Module, indices: torch.Tensor) -> None:
        """Request the rows of an embedding (with ``sparse=True``) for the next input ``indices`` early."""
        self._embeddings.prefetch(module, indices)

    def pull(self, *, tables: bool = False) -> int:
        """Pull the newest values; with ``tables`` also all rows of all embeddings. Returns the job's step."""
        self._finish_all()
        self._finish([self._shards.ask(ps, {"op": "pull"}, []) for ps in range(len(self._shards))])
        if tables:
            self._embeddings.fetch_all()
        return self.version

    def checkpoint(self, **metrics: Any) -> Path:
        """Write a checkpoint of all ps, and wait for it. Only for the chief.

        Raises:
            CheckpointError: a ps could not write its shard; earlier checkpoints are unchanged.
        """
        if self._checkpoints is None:
            raise ParameterServerError(f"{self._shards.worker_name} is not the chief: only worker 0 writes checkpoints")
        self._finish_all()
        return self._checkpoints.write(self._shards.versions, metrics)

    def close(self, *, is_done: bool = True, why: str = "") -> None:
        """Leave all ps; ``is_done``: the whole training is done. Requests in flight are waited for."""
        if is_done:
            self._finish_all()
            if self._checkpoints is not None:
                self._checkpoints.finish()
        self._shards.leave({"why": why, "is_done": is_done and self.is_chief})
        self._shards.close()

    def status(self) -> List[Dict[str, Any]]:
        """The status of each ps: version, pushes, staleness, dropped gradients, missing workers."""
        return [
            connection.ask({"op": "status"}, timeout_s=self.options.step_timeout_s, purpose="for its status")[0]
            for connection in self._shards.connections
        ]

    def _is_last(self) -> bool:
        return self._until is not None and self.version >= self._until

    def _report(self, metrics: Dict[str, Any]) -> None:
        step = self.version if self._until is None else min(self.version, self._until)
        report.progress(step, self._until, dropped=self.staleness.dropped, **metrics)

    # Pushing.

    def _register_hooks(self) -> None:
        def taken(name: str) -> Any:
            def after(parameter: torch.Tensor) -> None:
                if self._gradients.has_taken(name):
                    raise ParameterServerError(
                        f"a second gradient of `{name}` before step(): "
                        "with overlap=True one backward pass makes one step"
                    )
                self._begin()
                if parameter.grad is not None:
                    try:
                        self._gradients.take(name, parameter.grad, self._shards.push_blocks)
                    except NonFiniteGradientError as error:
                        self._abandon_push()
                        raise self._with_context(error) from error

            return after

        for slab in self._layout.slabs:
            for member in slab.members:
                parameter = self._values.parameters[member.name]
                parameter.register_post_accumulate_grad_hook(taken(member.name))  # type: ignore[no-untyped-call]

    def _with_context(self, error: NonFiniteGradientError) -> NonFiniteGradientError:
        return NonFiniteGradientError(
            f"{self._shards.worker_name}, own step {self.own_steps}, update {self.version}: the gradient of {error} "
            "holds NaN or infinity; lower the learning rate, or clip before step()"
        )

    def _begin(self) -> None:
        if not self._gradients.is_started:
            self._gradients.begin()
            self._shards.begin_push()

    def _abandon_push(self) -> None:
        """Drop an unfinished push; a ps drops its part when the next push arrives."""
        self._gradients.begin()
        self._shards.abandon_push()

    def _push(self) -> None:
        self._begin()
        self._embeddings.gather()
        slot = self._gradients.slot
        self._gradients.finish(self._shards.push_blocks)
        rates = learning_rates(self.optimizer) if self.is_chief else None
        for ps in range(len(self._shards)):
            tables, frames = self._embeddings.gradients(ps)
            self._shards.push_last(ps, slot, {"tables": tables}, frames, rates)

    def _finish(self, numbers: Sequence[Optional[int]]) -> None:
        """Wait for these answers, install their values, and count the outcomes of the pushes."""
        outcomes = self._shards.finish(numbers)
        if self.options.backup_workers:
            self._shards.catch_up()
        dropped = [outcome["outcome"] for outcome in outcomes if outcome["outcome"] != "applied"]
        if dropped:
            self.staleness.late += "late" in dropped
            self.staleness.too_stale += "too_stale" in dropped
        elif outcomes:
            stalest = max(outcome["staleness"] for outcome in outcomes)
            self.staleness.record(stalest)
            self._timer.add_staleness(stalest)

    def _finish_all(self) -> None:
        """Wait for the push in flight."""
        self._finish(self._in_flight)
        self._in_flight = [None] * len(self._shards)
