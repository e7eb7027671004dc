"""The chief's part in checkpoints: it stages the folder, has every ps write its shard, and seals the checkpoint.

In ``sync`` mode all shards are of the same step: every ps is paused, the one that is furthest ahead determines the
step, and each writes its shard at that step. In ``async`` mode shards may be a few updates apart, as they are in the
training itself. A ps copies its shard in memory and writes it while training continues.
"""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch

from trainmaster_train.checkpoint import CheckpointError, seal_checkpoint, stage_checkpoint
from trainmaster_train.ps.checkpoint.shard_checkpoint import write_local
from trainmaster_train.ps.errors import DeadlineError, ParameterServerError
from trainmaster_train.ps.options import Options
from trainmaster_train.ps.worker.connection import Connection

HOLD_S = 30.0
_RETRY_S = 0.05
# With backup workers a ps may be an update ahead of another; more means that one came back with older values.
_DIVERGED = 8


class CheckpointCoordinator:
    def __init__(
        self, connections: Sequence[Connection], model: torch.nn.Module, options: Options, *, after: int
    ) -> None:
        """``after``: the version from which training starts."""
        self._connections = connections
        self._model = model
        self._options = options
        self._next = 0
        self._is_aligned = True
        self._plan(after)
        self._pending: Optional[_Pending] = None

    def after_step(self, versions: Sequence[int], metrics: Mapping[str, Any], *, is_last: bool) -> None:
        """Seal a written checkpoint, and begin the next one when it is due. Waits for the disk only if that has not
        finished the previous one. An error costs that checkpoint and a line in the log; training continues.
        """
        try:
            if self._pending is not None:
                self._pending.poll(wait_s=0.0)
                if self._pending.is_sealed:
                    self._pending = None
            # The checkpoint of the last update is written at the end, with the final metrics.
            if self._options.checkpoint_every and versions[0] >= self._next and not is_last:
                self.finish()  # at most one interval behind, however slow the disk is
                self._plan(versions[0])
                with self._released_on_failure():
                    is_sync = self._options.mode == "sync"
                    targets = self._hold() if is_sync else [None] * len(self._connections)
                    self._pending = self._begin(versions, metrics, targets)
        except (ParameterServerError, CheckpointError, OSError) as error:
            print(f"no checkpoint of update {versions[0]}: {error}; training goes on.", flush=True)
            self._pending = None

    def write(self, versions: Sequence[int], metrics: Mapping[str, Any]) -> Path:
        """Write a checkpoint now. Raises ``CheckpointError``."""
        self.finish()
        try:
            with self._released_on_failure():
                targets = self._hold_aligned() if self._options.mode == "sync" else None
                pending = self._begin(versions, metrics, targets or [None] * len(self._connections))
            return pending.poll(wait_s=self._options.step_timeout_s)
        except (ParameterServerError, OSError) as error:
            raise CheckpointError(f"no checkpoint of update {versions[0]}: {error}") from error

    def finish(self) -> None:
        """Wait for the checkpoint that is being written."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            try:
                pending.poll(wait_s=self._options.step_timeout_s)
            except (ParameterServerError, CheckpointError, OSError) as error:
                print(f"no checkpoint of step {pending.step}: {error}.", flush=True)

    def _plan(self, version: int) -> None:
        every = self._options.checkpoint_every or 0
        self._next = (version // every + 1) * every if every else 0

    def _hold(self) -> List[Optional[int]]:
        """Pause every ps, and return the first version that all of them can reach.

        A ps that came back with older values counts from there, and never reaches the others: then each shard is
        written at its own version.
        """
        versions = []
        for connection in self._connections:
            header, _ = connection.ask({"op": "hold"}, timeout_s=HOLD_S, purpose="to be held for a checkpoint")
            versions.append(int(header["version"]))
        self._is_aligned = len(set(versions)) == 1
        if max(versions) - min(versions) > _DIVERGED:
            self._is_aligned = True
            _release(self._connections)
            print(
                f"the ps are at updates {versions}, since one came back; the checkpoint has each shard as it is.",
                flush=True,
            )
            return [None] * len(versions)
        return [max(versions)] * len(versions)

    @contextmanager
    def _released_on_failure(self) -> Iterator[None]:
        """Release the paused ps at once if the checkpoint cannot begin."""
        try:
            yield
        except BaseException:
            _release(self._connections)
            raise

    def _hold_aligned(self) -> Optional[List[Optional[int]]]:
        """As :meth:`_hold` at a moment when all ps are at the same step, for a caller that makes no more steps itself.
        ``None`` if there is no such moment: only with backup workers, if one died in the middle of its last push or a
        ps came back with older values.
        """
        deadline = time.monotonic() + HOLD_S
        while time.monotonic() < deadline:
            targets = self._hold()
            if self._is_aligned:
                return targets
            _release(self._connections)
            threading.Event().wait(_RETRY_S)
        print("the ps are not all at the same update; the checkpoint has each shard as it is.", flush=True)
        return None

    def _begin(
        self, versions: Sequence[int], metrics: Mapping[str, Any], targets: Sequence[Optional[int]]
    ) -> "_Pending":
        step = versions[0] if targets[0] is None else targets[0]
        folder = stage_checkpoint(step)
        pending = _Pending(self._connections, self._options, step, metrics, folder)
        try:
            pending.ask(targets, write_local(folder, self._model))
        except BaseException:
            pending.abort()
            raise
        return pending


def _release(connections: Sequence[Connection]) -> None:
    for connection in connections:
        with suppress(ParameterServerError):  # it is gone
            connection.send({"op": "release"})


class _Pending:
    """A checkpoint that the ps are writing now."""

    def __init__(
        self, connections: Sequence[Connection], options: Options, step: int, metrics: Mapping[str, Any], folder: Path
    ) -> None:
        self.step = step
        self.is_sealed = False
        self._connections = connections
        self._options = options
        self._metrics = dict(metrics)
        self._folder = folder
        self._deadline = time.monotonic() + options.step_timeout_s
        self._numbers: Dict[int, int] = {}
        self._digests: Dict[str, str] = {}

    def ask(self, versions: Sequence[Optional[int]], local: Tuple[str, str]) -> None:
        name, digest = local
        self._digests[name] = digest
        for ps, connection in enumerate(self._connections):
            header = {"op": "save", "step": self.step, "version": versions[ps], "directory": str(self._folder.parent)}
            self._numbers[ps] = connection.send(header)

    def poll(self, *, wait_s: float) -> Path:
        """Seal the checkpoint once all have answered, waiting for at most ``wait_s``; see ``is_sealed``.

        Raises:
            ParameterServerError: a ps cannot write, is lost, or takes too long.
        """
        try:
            for ps, number in list(self._numbers.items()):
                connection = self._connections[ps]
                if wait_s or connection.has_answer(number):
                    header, _ = connection.answer(number, wait_s, f"the checkpoint of step {self.step}")
                    self._digests[header["file"]] = header["sha256"]
                    del self._numbers[ps]
            if self._numbers:
                self._check_deadline()
                return self._folder
            sealed = seal_checkpoint(
                self.step,
                self._metrics,
                directory=self._folder.parent,
                keep=self._options.keep_checkpoints,
                digests=self._digests,
            )
        except BaseException:
            self.abort()
            raise
        self.is_sealed = True
        return sealed

    def _check_deadline(self) -> None:
        if time.monotonic() > self._deadline:
            names = ", ".join(self._connections[ps].name for ps in self._numbers)
            raise DeadlineError(f"{names} did not write within {self._options.step_timeout_s:.0f} s")

    def abort(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        _release(self._connections)
