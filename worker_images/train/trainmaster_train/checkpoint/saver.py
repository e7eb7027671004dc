"""Saving in the background: training stops only for a copy in memory, and a thread writes it."""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections import OrderedDict
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Tuple, Union

from trainmaster_train import arguments, report, steps
from trainmaster_train.checkpoint.errors import CheckpointError, CheckpointNotWrittenError
from trainmaster_train.checkpoint.folder import Keep
from trainmaster_train.checkpoint.sharded import write_sharded
from trainmaster_train.checkpoint.states import write_state
from trainmaster_train.checkpoint.validation import check_state, checked_directory, checked_step


@dataclass
class StateSnapshot:
    """``state``: the copy. ``later``: (target, source, source's version, key) of copies left to :meth:`finish`."""

    state: Any
    later: List[Tuple[Any, Any, int, str]] = field(default_factory=list)

    def finish(self) -> None:
        """Copy the rest. The sources must not be modified meanwhile.

        Raises:
            CheckpointError: a source was modified.
        """
        for target, source, _, _ in self.later:
            target.copy_(source)
        # `_version` is torch's own counter of changes, as its documentation names it.
        changed = [place for _, source, version, place in self.later if source._version != version]  # noqa: SLF001
        if changed:
            raise CheckpointError(
                f"{changed[0]} was changed before optimizer.step() while it was being copied, so this checkpoint is "
                "not written; save without `optimizer=`"
            )


class Staging:
    """Memory for the copies, reused from one snapshot to the next: fresh memory costs more than the copying."""

    def __init__(self) -> None:
        self._buffers: Dict[Tuple[Any, ...], Any] = {}

    def snapshot(self, state: Any, unchanging: FrozenSet[int] = frozenset()) -> StateSnapshot:
        """A copy of ``state`` that shares no memory with it. The previous copy is overwritten.

        Args:
            unchanging: addresses of tensors that do not change for now: they are left to :meth:`Snapshot.finish`.
        """
        import torch

        old, self._buffers = self._buffers, {}
        made = StateSnapshot(None)
        copies: Dict[Tuple[Any, ...], Any] = {}
        devices = set()

        def copied(value: Any, place: str) -> Any:
            if isinstance(value, torch.Tensor):
                return tensor(value.detach(), place)
            if isinstance(value, dict):
                pairs = [(key, copied(inner, f"{place}.{key}" if place else str(key))) for key, inner in value.items()]
                if not isinstance(value, OrderedDict):
                    return dict(pairs)
                ordered = OrderedDict(pairs)
                if hasattr(value, "_metadata"):  # a state_dict's versions of its modules
                    ordered._metadata = copy.copy(value._metadata)  # type: ignore[attr-defined] # noqa: SLF001
                return ordered
            if type(value) in (list, tuple):
                return type(value)(copied(inner, f"{place}[{number}]") for number, inner in enumerate(value))
            return copy.deepcopy(value)

        def tensor(source: Any, place: str) -> Any:
            if type(source) is not torch.Tensor or source.layout != torch.strided:
                return source.cpu().clone()
            # A tensor with two names (tied weights) stays one tensor.
            key = (source.data_ptr(), source.dtype, tuple(source.shape), source.stride(), source.device)
            if source.numel() and key in copies:
                return copies[key]
            target = old.get(key)
            if target is None:
                target = torch.empty_like(source, device="cpu", pin_memory=source.is_cuda)
            self._buffers[key] = copies[key] = target
            if source.is_cuda:
                target.copy_(source, non_blocking=True)
                devices.add(source.device)
            elif source.data_ptr() in unchanging:
                made.later.append((target, source, source._version, place))  # noqa: SLF001 (as above)
            else:
                target.copy_(source)
            return target

        made.state = copied(state, "")
        for device in devices:
            torch.cuda.synchronize(device)
        return made


def addresses_of(optimizer: Optional[Any]) -> FrozenSet[int]:
    """Addresses of the tensors that only ``optimizer.step()`` changes: its parameters and its state."""
    import torch

    if optimizer is None:
        return frozenset()
    addresses = {parameter.data_ptr() for group in optimizer.param_groups for parameter in group["params"]}
    addresses |= {
        value.data_ptr()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    }
    return frozenset(addresses)


class Saver:
    """Writes checkpoints in the background, one at a time::

        with Saver(keep=Keep(last=3, best=1, metric="loss")) as saver:
            ...
            saver.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step, {"loss": loss},
                       optimizer=optimizer)

    It holds memory for one copy of the state, from the first save until it is closed. A failed checkpoint is reported
    on stderr at once, and raised by the next call. Leaving the block waits for the last checkpoint.

    Args:
        directory: folder of all checkpoints; the job's own when ``None``.
        keep: as in :func:`trainmaster_train.checkpoint.save_checkpoint`.
        sharded: every process of the default group creates a saver, and saves its own shard (``save`` is then
            collective); otherwise only the writer (rank 0) creates one.
        timeout_s: how long ``save``, ``wait``, ``close`` and ``optimizer.step()`` wait for a checkpoint: a volume may
            hang for ever. With ``sharded`` also how long the processes wait for each other.
    """

    def __init__(
        self,
        *,
        directory: Optional[Union[str, Path]] = None,
        keep: Optional[Union[int, Keep]] = 3,
        sharded: bool = False,
        timeout_s: float = 3600.0,
    ) -> None:
        self._timeout_s = arguments.seconds("timeout_s", timeout_s)
        self._directory = None if directory is None else checked_directory(directory)
        self._keep = keep if isinstance(keep, Keep) else Keep(last=keep)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Optional[Future[Path]] = None
        self._snapshot = self._snapshot_whole
        self._write: Callable[..., Path] = write_state
        self._guards: Any = None
        self._is_copied = threading.Event()
        self._is_copied.set()
        self._is_sharded = sharded
        if sharded:
            self._shard()
        else:
            self._staging = Staging()

    def _shard(self) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        # A separate group: collectives of two threads must not mix.
        group = None
        if dist.is_available() and dist.is_initialized():
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self._timeout_s))
        has_cuda = torch.cuda.is_available()
        stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=has_cuda,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=has_cuda,
            )
        )

        def snapshot(state: Any, optimizer: Optional[Any]) -> StateSnapshot:
            del optimizer
            staged = stager.stage(state)
            assert isinstance(staged, dict)  # noqa: S101 (a future only with use_async_staging)
            return StateSnapshot(staged)

        def write(*arguments: Any, **options: Any) -> Path:
            return write_sharded(*arguments, process_group=group, timeout_s=self._timeout_s, **options)

        self._snapshot, self._write = snapshot, write

    def save(
        self,
        state: Any,
        step: int,
        metrics: Optional[Mapping[str, Any]] = None,
        *,
        optimizer: Optional[Any] = None,
    ) -> None:
        """Copy ``state`` and write it as the checkpoint of ``step`` in the background.

        Waits first if the previous checkpoint is still being written.

        Args:
            optimizer: the only optimizer that changes the model's parameters. Then these, and its own state, are copied
                in the background, too, while the next step computes, and its ``step()`` waits for that. Nothing else
                may change them before. (Only unsharded tensors on the CPU; others are copied at once.)

        Raises:
            CheckpointNotWrittenError: the previous checkpoint could not be written.
            CheckpointError: the parameters were changed before ``optimizer.step()``, in the previous checkpoint.
            ValueError, TypeError: as :func:`trainmaster_train.checkpoint.save_checkpoint`.
        """
        step = checked_step(step)
        timer = steps.timer()
        with timer.part(steps.CHECKPOINT):
            self.wait()
            if not self._is_sharded:
                check_state(state)
            plain = report.plain_metrics(metrics or {})
            snapshot = self._snapshot(state, optimizer)
            if snapshot.later:
                self._is_copied.clear()
                self._guard(optimizer)
            self._writing = self._pool.submit(self._finish, snapshot, step, plain, timer)

    def wait(self) -> Optional[Path]:
        """Wait until the last checkpoint is written; returns its folder, or ``None`` if none was being written.

        Raises:
            CheckpointError: it could not be written, or not within ``timeout_s``.
        """
        writing = self._writing
        if writing is not None and not futures.wait([writing], self._timeout_s).done:
            raise CheckpointNotWrittenError(
                f"the last checkpoint is still being written after {self._timeout_s:g} s: see whether its volume "
                "hangs, or give Saver a larger timeout_s; earlier checkpoints are intact"
            )
        self._writing = None
        return None if writing is None else writing.result()

    def close(self) -> None:
        """Wait for the last checkpoint, and release threads and memory."""
        try:
            self.wait()
        finally:
            self._pool.shutdown(wait=self._writing is None)
            if self._guards is not None:
                self._guards[1].remove()
                self._guards = None

    def __enter__(self) -> Saver:  # noqa: PYI034 (Self needs Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _snapshot_whole(self, state: Any, optimizer: Optional[Any]) -> StateSnapshot:
        return self._staging.snapshot(state, addresses_of(optimizer))

    def _guard(self, optimizer: Any) -> None:
        """Make ``optimizer.step()`` wait for the copy."""
        if self._guards is not None and self._guards[0] is optimizer:
            return
        if self._guards is not None:
            self._guards[1].remove()
        self._guards = (optimizer, optimizer.register_step_pre_hook(self._before_step))

    def _before_step(self, *_: Any) -> None:
        if not self._is_copied.is_set():
            with steps.timer().part(steps.CHECKPOINT):
                is_copied = self._is_copied.wait(self._timeout_s)
            if not is_copied:
                raise CheckpointNotWrittenError(
                    f"optimizer.step() has waited {self._timeout_s:g} s for the copy of the last checkpoint in memory, "
                    "which is not finished: see whether the machine swaps, or save without `optimizer=`; nothing was "
                    "changed, and earlier checkpoints are intact"
                )

    def _finish(self, snapshot: StateSnapshot, step: int, metrics: Mapping[str, Any], timer: steps.StepTimer) -> Path:
        started = time.perf_counter()
        try:
            try:
                snapshot.finish()
            finally:
                self._is_copied.set()
            return self._write(snapshot.state, step, metrics, directory=self._directory, keep=self._keep)
        except Exception as error:
            print(f"trainmaster: {error}", file=sys.stderr, flush=True)
            raise
        finally:
            timer.add_overlapped(steps.CHECKPOINT, time.perf_counter() - started)
