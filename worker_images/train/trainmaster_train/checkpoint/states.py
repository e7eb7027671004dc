"""Torch states as checkpoints: writing, reading, and loading into a model."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, List, Mapping, Optional, Tuple, Union, cast

from trainmaster_train import steps
from trainmaster_train.checkpoint import manifest
from trainmaster_train.checkpoint.errors import CheckpointError, raising_not_written
from trainmaster_train.checkpoint.folder import STATE_FILE, Keep, read_meta, seal_checkpoint, stage_checkpoint
from trainmaster_train.checkpoint.validation import check_state

_SHOWN = 3  # names of each kind in a message


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read. ``state``: as given to :func:`save_checkpoint`; ``step``: 0 if another program wrote
    the file without a description. ``format``: one of
    :data:`trainmaster_train.checkpoint.formats.FORMATS`.
    """

    path: Path
    step: int
    metrics: Mapping[str, Any]
    state: Any
    format: str = "trainmaster"


def save_checkpoint(
    state: Any,
    step: int,
    metrics: Optional[Mapping[str, Any]] = None,
    *,
    directory: Optional[Union[str, Path]] = None,
    keep: Optional[Union[int, Keep]] = 3,
) -> Path:
    """Write ``state`` as the checkpoint of ``step`` and notify the platform. Blocks until it is on the disk.

    Call it in one process only (rank 0). A complete checkpoint of the same step is replaced; stderr says so.

    Args:
        state: readable by ``torch.load(weights_only=True)``: tensors, numbers, texts, lists and dicts of them.
        directory: folder of all checkpoints; the job's own when ``None``.
        keep: number of newest checkpoints to keep, or a :class:`Keep`; ``None`` keeps all.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointNotWrittenError: the disk is full or unavailable (also an ``OSError``); earlier ones are unchanged.
        ValueError: ``step`` is not a whole number, or a value in ``state`` could not be read back; names its keys.
        TypeError: a metric is not a number; names it.
    """
    with steps.timer().part(steps.CHECKPOINT):
        check_state(state)
        return write_state(state, step, metrics, directory=directory, keep=keep)


def write_state(
    state: Any,
    step: int,
    metrics: Optional[Mapping[str, Any]] = None,
    *,
    directory: Optional[Union[str, Path]] = None,
    keep: Optional[Union[int, Keep]] = 3,
) -> Path:
    """As :func:`save_checkpoint`, without the step timer: for a background thread."""
    import torch

    staged = stage_checkpoint(step, directory=directory)
    try:
        with raising_not_written(step, staged.parent), closing(manifest.HashedFile(staged / STATE_FILE)) as file:
            torch.save(state, cast("Any", file))
            file.check()
        digests = {STATE_FILE: file.hexdigest()}
        return seal_checkpoint(step, metrics, directory=directory, keep=keep, digests=digests)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise


def load_checkpoint(path: Union[str, Path], map_location: Any = "cpu", *, verify: bool = True) -> Checkpoint:
    """Read a checkpoint of :func:`save_checkpoint`, or a file of ``torch.save``. Executes no code from the file.

    Args:
        verify: compare the hashes that were stored when it was written, before anything is loaded.

    Raises:
        CheckpointError: it is incomplete, damaged, or not readable as tensors and plain values.
    """
    import torch

    path = Path(path)
    meta = read_meta(path)
    if path.is_dir():
        manifest.check(path, hashes=verify)
    file = path / STATE_FILE if path.is_dir() else path
    if not file.exists():
        raise CheckpointError(f"{file}: does not exist; choose another checkpoint")
    try:
        state = torch.load(file, map_location=map_location, weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{file}: cannot be read as a torch state; choose another checkpoint") from error
    is_folder = path.is_dir()
    return Checkpoint(
        path=path,
        step=int(meta.get("step") or 0),
        metrics=meta.get("metrics", {}),
        state=state,
        format="trainmaster" if is_folder else "torch",
    )


def load_state(target: Any, state: Any, *, source: Optional[Union[str, "os.PathLike[str]", Checkpoint]] = None) -> None:
    """Load ``state`` into a model or an optimizer: completely, or not at all with a message of what does not fit.

    Args:
        target: a ``torch.nn.Module`` or an optimizer.
        state: a result of ``target.state_dict()``.
        source: where the state comes from, for the message.

    Raises:
        CheckpointError: ``state`` is of another model or optimizer; names missing and unexpected tensors, and those of
            another shape.
    """
    import torch

    path = source.path if isinstance(source, Checkpoint) else source
    where = "the checkpoint" if path is None else f"{path}:"
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{where} holds a {type(state).__name__} where a state_dict is wanted")
    if isinstance(target, torch.nn.Module):
        misfits = _misfits_of_model(target.state_dict(), state)
    else:
        misfits = _misfits_of_optimizer(target.state_dict(), state)
    if misfits:
        raise CheckpointError(f"{where} is of another {_kind(target)}: {'; '.join(misfits)}")
    target.load_state_dict(state)


def _kind(target: Any) -> str:
    import torch

    return "model" if isinstance(target, torch.nn.Module) else "optimizer"


def _misfits_of_model(own: Mapping[str, Any], state: Mapping[str, Any]) -> List[str]:
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    shapes = [
        f"{name} is {_shape(state[name])} where the model has {_shape(own[name])}"
        for name in own
        if name in state and _shape(state[name]) != _shape(own[name])
    ]
    misfits = []
    if missing:
        misfits.append(f"missing {_shortened(missing)}")
    if unexpected:
        misfits.append(f"unexpected {_shortened(unexpected)}")
    if shapes:
        misfits.append(_shortened(shapes))
    misfits += _without_prefix(missing, unexpected)
    return misfits


def _without_prefix(missing: List[str], unexpected: List[str]) -> List[str]:
    """Advice for the most common mismatch: names of a wrapped model and of a plain one."""
    prefix = "module."
    if missing and {prefix + name for name in missing} == set(unexpected):
        return [f"its names begin with {prefix!r}, as DistributedDataParallel's do: load it into the wrapped model"]
    if unexpected and {prefix + name for name in unexpected} == set(missing):
        return [f"the model's names begin with {prefix!r}: load it into `model.module`"]
    return []


def _misfits_of_optimizer(own: Mapping[str, Any], state: Mapping[str, Any]) -> List[str]:
    have, want = _groups(state), _groups(own)
    if have is None or want is None:
        return ["it has no param_groups"]
    if have != want:
        return [f"it is of {_describe_groups(have)}, this one has {_describe_groups(want)}"]
    return []


def _groups(state: Mapping[str, Any]) -> Optional[Tuple[int, ...]]:
    try:
        return tuple(len(group["params"]) for group in state["param_groups"])
    except (LookupError, TypeError):
        return None


def _describe_groups(groups: Tuple[int, ...]) -> str:
    return f"{sum(groups)} parameters in {len(groups)} group{'' if len(groups) == 1 else 's'}"


def _shape(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is None:
        return f"a {type(value).__name__}"
    return "×".join(str(size) for size in shape) or "a single number"


def _shortened(names: List[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
