"""The evaluator: evaluates each new checkpoint while the others train."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Protocol, Set

import torch
import zmq

from trainmaster_train import report
from trainmaster_train.checkpoint import CheckpointError, complete_checkpoints, read_meta
from trainmaster_train.context import Context
from trainmaster_train.ps.checkpoint.shard_checkpoint import DamagedError, check_files, load_model
from trainmaster_train.ps.errors import DeadlineError, LostError, ParameterServerError
from trainmaster_train.ps.options import Options
from trainmaster_train.ps.worker.connection import Connection

_POLL_S = 1.0
_ANSWER_S = 10.0


class StopFlag(Protocol):
    def __bool__(self) -> bool: ...

    def wait(self, timeout_s: float) -> bool: ...


def evaluate_checkpoints(
    model: torch.nn.Module,
    evaluate: Callable[[], Mapping[str, Any]],
    *,
    context: Context,
    key: bytes,
    options: Options,
    stopped: StopFlag,
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
                stopped.wait(_POLL_S)
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
                self._connection.open(_ANSWER_S)
                # The evaluator neither pushes nor pulls: it needs no model.
                self._connection.ask({"op": "watch"}, timeout_s=_ANSWER_S, what="the evaluator's greeting")
                self._is_open = True
            header, _ = self._connection.ask({"op": "status"}, timeout_s=_ANSWER_S, what="for its status")
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
                self._connection.ask({"op": "bye", "why": "done"}, timeout_s=_ANSWER_S, what="the good-bye")
            except ParameterServerError:
                pass  # it is gone
        self._connection.close()
        self._context.term()
