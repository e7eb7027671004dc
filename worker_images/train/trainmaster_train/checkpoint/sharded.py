"""Sharded checkpoints (FSDP): every process writes its own shard, through ``torch.distributed.checkpoint``.

All functions here are collective: every process of the group calls them. A failure in one process is raised in all,
with the rank and the reason, so that no process waits for one that has given up.
"""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Type, TypeVar, Union

from trainmaster_train import steps
from trainmaster_train.checkpoint import formats, manifest
from trainmaster_train.checkpoint.errors import CheckpointError, CheckpointNotWrittenError, explain_torch_error
from trainmaster_train.checkpoint.folder import Keep, seal_checkpoint, stage_checkpoint

T = TypeVar("T")
R = TypeVar("R")

_BARRIER_S = 3600.0  # late processes may still be training


def save_sharded(
    state: Dict[str, Any],
    step: int,
    metrics: Optional[Mapping[str, Any]] = None,
    *,
    directory: Optional[Union[str, Path]] = None,
    keep: Optional[Union[int, Keep]] = 3,
    process_group: Any = None,
    timeout_s: float = _BARRIER_S,
) -> Path:
    """Write ``state`` as the checkpoint of ``step``, each process its own shards. Blocks until it is on the disk.

    Args:
        state: a dict of tensors, DTensors and plain values, such as ``get_state_dict`` of
            ``torch.distributed.checkpoint.state_dict`` gives.
        keep: as in :func:`trainmaster_train.checkpoint.save_checkpoint`.
        process_group: the processes that write; the default group if ``None``.
        timeout_s: how long the processes wait for each other before anything is written; afterwards the group's own
            time-out applies.

    Returns:
        The checkpoint's folder, in every process.

    Raises:
        CheckpointNotWrittenError: in every process, if it could not be written or some processes did not come (with
            gloo rank 0 names them); earlier ones are intact.
    """
    with steps.timer().part(steps.CHECKPOINT):
        return write_sharded(
            state, step, metrics, directory=directory, keep=keep, process_group=process_group, timeout_s=timeout_s
        )


def write_sharded(
    state: Dict[str, Any],
    step: int,
    metrics: Optional[Mapping[str, Any]] = None,
    *,
    directory: Optional[Union[str, Path]] = None,
    keep: Optional[Union[int, Keep]] = 3,
    process_group: Any = None,
    timeout_s: float = _BARRIER_S,
) -> Path:
    """As :func:`save_sharded`, without the step timer: for a background thread."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    rank = _rank(process_group)
    subject = f"the checkpoint of step {step} was not written"
    _barrier(subject, process_group, timeout_s, CheckpointNotWrittenError)
    staged = _on_first_rank(lambda: stage_checkpoint(step, directory=directory), process_group)
    try:
        # All files are flushed when the checkpoint is sealed.
        writer = FileSystemWriter(staged, sync_files=False)
        try:
            save(state, storage_writer=writer, process_group=process_group)
        except CheckpointException as error:
            reasons = explain_torch_error(_reasons(error.failures))
            raise CheckpointNotWrittenError(f"{subject}: {reasons}; earlier ones are intact") from error
        except RuntimeError as error:
            raise CheckpointNotWrittenError(
                f"{subject}: {_describe_lost_peer(error)}; earlier ones are intact"
            ) from error
        shares = _on_each_rank(lambda: _own_digests(staged, rank), process_group)
        digests = {name: digest for share in shares for name, digest in share.items()}
        return _on_first_rank(
            lambda: seal_checkpoint(step, metrics, directory=directory, keep=keep, digests=digests), process_group
        )
    except BaseException:
        if rank == 0:
            shutil.rmtree(staged, ignore_errors=True)
        raise


def load_sharded(state: Dict[str, Any], path: Union[str, Path], *, process_group: Any = None) -> None:
    """Read a sharded checkpoint, written by any number of processes, into the tensors of ``state``, in place.

    torch unpickles the plain values in it: read only what your own jobs wrote.

    Raises:
        CheckpointError: it is not sharded, or of another model; names the first tensor that does not fit.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    path = Path(path)
    if not (path / formats.DCP_METADATA_FILE).is_file():
        raise CheckpointError(f"{path}: is not a sharded checkpoint; read it with load_checkpoint")
    _barrier(f"{path}: was not read", process_group, _BARRIER_S)
    try:
        load(state, storage_reader=FileSystemReader(path), process_group=process_group)
    except CheckpointException as error:
        raise CheckpointError(f"{path}: does not fit this model: {_reasons(error.failures)}") from error


def on_all_ranks(find: Callable[[], Optional[T]], use: Callable[[T], R]) -> Optional[R]:
    """Let rank 0 of the default group ``find`` something, and every process ``use`` it."""
    _barrier("no checkpoint was looked for", None, _BARRIER_S)
    outcomes = _on_first_rank(find, None)
    return None if outcomes is None else use(outcomes)


def _own_digests(staged: Path, rank: int) -> Dict[str, str]:
    # torch names the files of a process __<rank>_<number>.distcp
    return {path.name: manifest.digest(path) for path in staged.glob(f"__{rank}_*")}


def _reasons(failures: Mapping[int, Any]) -> str:
    reasons = {}
    for rank, failure in failures.items():
        error = failure[0] if isinstance(failure, tuple) else failure
        reasons[rank] = _first_line(error) or type(error).__name__
    first = min(reasons)
    more = "" if len(reasons) == 1 else f" (and {len(reasons) - 1} more)"
    return f"rank {first}: {reasons[first]}{more}"


def _on_each_rank(call: Callable[[], T], group: Any) -> List[T]:
    """The results of ``call`` in all processes, in rank order, in every process."""
    return _exchange(_outcome(call), group)


def _on_first_rank(call: Callable[[], T], group: Any) -> T:
    """The result of ``call`` in the first process, in every process."""
    outcome: Tuple[bool, Any] = _outcome(call) if _rank(group) == 0 else (True, None)
    outcomes: List[T] = _exchange(outcome, group)
    return outcomes[0]


def _outcome(call: Callable[[], T]) -> Tuple[bool, Any]:
    try:
        return True, call()
    except Exception as error:  # noqa: BLE001 (the others must get any error instead of waiting)
        return False, error if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"


def _exchange(outcome: Tuple[bool, Any], group: Any) -> List[Any]:
    outcomes: List[Any] = [outcome]
    if _is_distributed():
        import torch.distributed as dist

        outcomes = [None] * dist.get_world_size(group)
        try:
            dist.all_gather_object(outcomes, outcome, group=group)
        except RuntimeError as error:
            raise CheckpointError(
                f"the processes could not agree on the checkpoint: {_describe_lost_peer(error)}"
            ) from error
    for rank, (is_good, value) in enumerate(outcomes):
        if not is_good:
            if isinstance(value, CheckpointError):
                raise value
            raise CheckpointError(f"rank {rank}: {value}")
    return [value for _, value in outcomes]


def _barrier(label: str, group: Any, timeout_s: float, kind: Type[CheckpointError] = CheckpointError) -> None:
    """Wait for all processes. Raises ``kind`` with ``label`` if one does not come."""
    if not _is_distributed():
        return
    from trainmaster_train.distributed.group import monitored_barrier

    try:
        monitored_barrier(timedelta(seconds=timeout_s), group)
    except RuntimeError as error:
        raise kind(
            f"{label}: not all processes came within {timeout_s:g} s ({_first_line(error)}); every process must call it"
        ) from error


def _describe_lost_peer(error: RuntimeError) -> str:
    return f"another process was lost, or did not answer in time ({_first_line(error)})"


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")


def _rank(group: Any) -> int:
    if not _is_distributed():
        return 0
    import torch.distributed as dist

    return dist.get_rank(group)


def _is_distributed() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()
