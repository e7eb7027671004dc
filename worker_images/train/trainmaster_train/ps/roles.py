"""Entry point of every role: worker, chief, ps, and evaluator, which evaluates checkpoints while the others train."""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Set

import torch
import zmq

from trainmaster_train import report
from trainmaster_train.checkpoint import CheckpointError, complete_checkpoints, latest, read_meta
from trainmaster_train.checkpoint.errors import DamagedError
from trainmaster_train.context import Context, ContextError, current
from trainmaster_train.ps.checkpoint.shard_checkpoint import (
    check_files,
    load_model,
    newest_undamaged,
    remove_saved_shard,
    restore_saved_shard,
    restore_shard,
    save_shard,
)
from trainmaster_train.ps.errors import DeadlineError, LostError, ParameterServerError
from trainmaster_train.ps.layout import layout_of
from trainmaster_train.ps.options import Options
from trainmaster_train.ps.server.server import ParameterServer
from trainmaster_train.ps.server.shard import Shard, check_optimizer
from trainmaster_train.ps.wire.messages import job_key
from trainmaster_train.ps.worker.connection import Connection
from trainmaster_train.ps.worker.servers import Servers

Evaluate = Callable[[], Mapping[str, Any]]

_EVALUATOR_POLL_S = 1.0
_STATUS_TIMEOUT_S = 10.0


def run(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    train: Callable[[Servers], Optional[Mapping[str, Any]]],
    *,
    evaluate: Optional[Evaluate] = None,
    options: Optional[Options] = None,
) -> None:
    """Run this replica's role, according to ``TRAINMASTER_LAYOUT`` or ``TF_CONFIG``.

    - worker, chief: joins the ps, calls ``train(servers)``, and leaves. The chief (rank 0) also writes the last
      checkpoint, with the metrics that ``train`` returned, and reports them.
    - ps: serves its shard, from the newest checkpoint if there is one, until SIGTERM or SIGINT.
    - evaluator: loads each new checkpoint into ``model``, calls ``evaluate()`` and reports the metrics that it returns,
      until the training is done or SIGTERM comes.

    An error ends the process with exit code 1 and one sentence.

    Args:
        model: the same in every replica; a ps uses only its shapes (``with torch.device("meta")`` saves memory).
        optimizer: an ordinary one over the model's parameters; the ps create theirs like it.
        train: the training loop; see :class:`Servers`.
    """
    options = options or Options()
    try:
        context = current()
        _run(context, model, optimizer, train, evaluate, options)
    except (ParameterServerError, CheckpointError, ContextError) as error:
        sys.exit(f"{_name()}: {error}.")


def _run(
    context: Context,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    train: Callable[[Servers], Optional[Mapping[str, Any]]],
    evaluate: Optional[Evaluate],
    options: Options,
) -> None:
    if not context.peers.get("ps"):
        raise ParameterServerError("no ps in TRAINMASTER_LAYOUT or TF_CONFIG: give the job `ps: 1`")
    options.check(_workers(context))
    key = job_key(context.token_file)
    if context.role == "ps":
        serve(context, model, optimizer, key=key, options=options)
    elif context.role == "evaluator":
        if evaluate is None:
            raise ParameterServerError("an evaluator needs a function to call: give ps.run(evaluate=…)")
        with _stop_signals() as stopped:
            evaluate_checkpoints(model, evaluate, context=context, key=key, options=options, stopped=stopped)
    else:
        work(context, model, optimizer, train, key=key, options=options)


def serve(
    context: Context,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    key: bytes,
    options: Options,
) -> None:
    """Run the ps ``context.index``; returns after SIGTERM or SIGINT, when no update is half applied and the shard is
    saved for a successor.
    """
    check_optimizer(optimizer)
    addresses = context.peers["ps"]
    layout = layout_of(model, optimizer)
    name = f"ps {context.index}"
    try:
        shard = Shard(layout, optimizer, context.index, len(addresses))
        is_initialised = _restore(shard, context, options)
    except MemoryError as error:
        raise ParameterServerError(
            f"{name} has no memory for {error}: give the ps more memory, or the job more ps"
        ) from error
    with _stop_signals() as stopped:
        server = ParameterServer(
            shard,
            options,
            key=key,
            address=addresses[context.index],
            workers=max(1, _workers(context)),
            is_initialised=is_initialised,
        )
        stopped.on_stop(server.stop)
        mebibytes = layout.bytes_of(context.index, len(addresses)) / 2**20
        print(f"{name} of {len(addresses)} serves {mebibytes:.1f} MiB at {addresses[context.index]}.", flush=True)
        server.serve()
        print(f"{stopped.name}: stopped after update {server.version}; {server.summary}.", flush=True)
        if server.is_done:
            remove_saved_shard(shard, context)
        elif server.is_initialised and server.version:  # at update 0 there is nothing to save
            _save_for_successor(shard, context)


def _workers(context: Context) -> int:
    """The number of workers in the layout, including the chief."""
    return sum(len(context.peers.get(role, ())) for role in ("chief", "worker"))


def _restore(shard: Shard, context: Context, options: Options) -> bool:
    """Restore ``shard`` from the state at which training continues; ``False`` if there is none."""
    newest = latest()
    start = newest_undamaged(f"ps {shard.ps}")
    while start is not None:
        try:
            restore_shard(shard, start)
            break
        except CheckpointError:
            before, start = start, newest_undamaged(f"ps {shard.ps}")
            if start == before:
                raise
            # It was just pruned in favour of a newer one.
            newest = latest()
    if restore_saved_shard(shard, context, mode=options.mode, start=newest):
        print(f"going on from where this ps was stopped: {shard.version} updates are done.", flush=True)
        return True
    if start is not None:
        print(f"resuming from {start.name}: {shard.version} updates are done.", flush=True)
    return start is not None


def _save_for_successor(shard: Shard, context: Context) -> None:
    """Save the shard for a successor. The platform waits for that within its grace period."""
    try:
        path = save_shard(shard, context)
    except (MemoryError, OSError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        print(
            f"ps {shard.ps} cannot keep its shard ({reason}); a successor starts from the last checkpoint.", flush=True
        )
    else:
        print(f"ps {shard.ps} left its shard of update {shard.version} in {path}.", flush=True)


def work(
    context: Context,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    train: Callable[[Servers], Optional[Mapping[str, Any]]],
    *,
    key: bytes,
    options: Options,
) -> None:
    """Run a worker: join, train, and leave; the chief writes the last checkpoint."""
    servers = Servers(model, optimizer, context=context, key=key, options=options)
    try:
        metrics: Dict[str, Any] = dict(train(servers) or {})
        if servers.is_chief:
            servers.checkpoint(**metrics)
            report.progress(servers.version, servers.version, **metrics)
        print(f"worker {servers.worker}: done after {servers.own_steps} own steps; {servers.staleness}.", flush=True)
    except BaseException as error:
        # So that the ps and the other workers learn of it at once, and do not wait for this one.
        servers.close(is_done=False, why=str(error) or type(error).__name__)
        raise
    servers.close()


def evaluate_checkpoints(
    model: torch.nn.Module,
    evaluate: Callable[[], Mapping[str, Any]],
    *,
    context: Context,
    key: bytes,
    options: Options,
    stopped: StopSignal,
) -> None:
    """Load each newest checkpoint into ``model``, call ``evaluate`` and report its metrics as ``eval_…``; also the
    last one, when the training is done or ``stopped`` is set.

    Raises:
        DeadlineError: the first ps was unreachable for ``options.idle_timeout_s``: the training is not running.
    """
    training = _TrainingStatus(context, key, options)
    evaluated: Optional[Path] = None
    damaged: Set[Path] = set()
    try:
        while True:
            # Checked before the listing: a checkpoint that is sealed before the end is listed after it.
            is_over = bool(stopped) or training.is_done()
            newest = next((path for path in reversed(complete_checkpoints()) if path not in damaged), None)
            if newest is not None and newest != evaluated:
                try:
                    check_files(newest)
                    _evaluate(model, evaluate, newest)
                    evaluated = newest
                except DamagedError as error:
                    if newest.exists():  # and was not pruned in favour of a newer one
                        damaged.add(newest)
                        print(f"{error}; it is not evaluated.", flush=True)
            elif is_over:
                return
            else:
                stopped.wait(_EVALUATOR_POLL_S)
    finally:
        training.close()


def _evaluate(model: torch.nn.Module, evaluate: Callable[[], Mapping[str, Any]], path: Path) -> None:
    try:
        load_model(model, path)
        step = int(read_meta(path).get("step") or 0)
    except CheckpointError:
        if path.exists():
            raise
        return  # pruned meanwhile
    model.eval()
    with torch.no_grad():
        metrics = {f"eval_{name}": value for name, value in evaluate().items()}
    words = ", ".join(f"{name} {float(value):.4f}" for name, value in metrics.items())
    print(f"evaluated step {step}: {words}.", flush=True)
    report.progress(step, **metrics)


class _TrainingStatus:
    """The status of the training, according to the first ps."""

    def __init__(self, context: Context, key: bytes, options: Options) -> None:
        self._context: "zmq.Context[zmq.Socket[bytes]]" = zmq.Context()
        self._options = options
        self._connection = Connection(self._context, 0, context.peers["ps"][0], key)
        self._is_open = False
        self._away_since = time.monotonic()

    def is_done(self) -> bool:
        try:
            if not self._is_open:
                self._connection.open(_STATUS_TIMEOUT_S)
                # The evaluator neither pushes nor pulls: it needs no model.
                self._connection.ask({"op": "watch"}, timeout_s=_STATUS_TIMEOUT_S, purpose="the evaluator's greeting")
                self._is_open = True
            header, _ = self._connection.ask({"op": "status"}, timeout_s=_STATUS_TIMEOUT_S, purpose="for its status")
        except (LostError, DeadlineError) as error:
            self._is_open = False
            if time.monotonic() - self._away_since > self._options.idle_timeout_s:
                raise DeadlineError(f"the training is not running: {error}") from error
            return False
        self._away_since = time.monotonic()
        return bool(header["is_done"])

    def close(self) -> None:
        if self._is_open:
            try:
                self._connection.ask({"op": "bye", "why": "done"}, timeout_s=_STATUS_TIMEOUT_S, purpose="the good-bye")
            except ParameterServerError:
                pass  # it is gone
        self._connection.close()
        self._context.term()


class StopSignal:
    """Whether a signal requested this process to stop, and which one."""

    def __init__(self) -> None:
        self.name = ""
        self._event = threading.Event()
        self._actions: List[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float) -> bool:
        return self._event.wait(timeout_s)

    def on_stop(self, action: Callable[[], None]) -> None:
        """Call ``action`` when the signal comes, or now if it has come already."""
        self._actions.append(action)
        if self:
            action()

    def handle(self, number: int, _frame: Any = None) -> None:
        self.name = signal.Signals(number).name
        self._event.set()
        for action in self._actions:
            action()


@contextmanager
def _stop_signals() -> Iterator[StopSignal]:
    stopped = StopSignal()
    before = {number: signal.signal(number, stopped.handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _name() -> str:
    try:
        context = current()
    except ContextError:
        return "this replica"
    return f"{context.role}-{context.index}"
