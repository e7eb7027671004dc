"""Checkpoints that are either complete or not there.

A checkpoint is a folder ``<output>/checkpoints/step-00000100/`` with a ``checkpoint.json`` (step, metrics), whatever
files its writers put there (``state.pt`` for a torch state), and an empty ``.complete`` that is written last: a
reader ignores every folder without it. Until then the files lie in ``.step-00000100.a2.partial/`` (of attempt 2), so a
process that is killed at any instruction leaves the older checkpoints as they were, and an attempt that still runs on a
node that was cut off does not meddle with its successor's files.

One writer: :func:`save_checkpoint`. Several writers (each ps its own shard): one process calls
:func:`stage_checkpoint`, everybody writes into that folder, then the first process calls :func:`seal_checkpoint`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Union

from trainmaster_train import report
from trainmaster_train.context import current

COMPLETE = ".complete"
STATE_FILE = "state.pt"
META_FILE = "checkpoint.json"

_NAME = re.compile(r"^step-(\d{1,18})$")
_LEFTOVER = re.compile(r"^\.step-\d{1,18}(?:\.a(\d{1,9}))?\.(partial|old)$")


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read or written; the message says which and what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read. ``state`` is what was given to :func:`save_checkpoint`; ``step`` is 0 where another
    program wrote the file and no description is beside it.
    """

    path: Path
    step: int
    metrics: Mapping[str, Any]
    state: Any


def save_checkpoint(
    state: Any,
    step: int,
    metrics: Optional[Mapping[str, Any]] = None,
    *,
    directory: Optional[Union[str, Path]] = None,
    keep: Optional[int] = 3,
) -> Path:
    """Write ``state`` as the checkpoint of ``step`` and tell the platform. Blocks until it is on the disk.

    Call it in one process only (rank 0). A complete checkpoint of the same step is replaced.

    Args:
        state: what ``torch.load(weights_only=True)`` reads back: tensors, numbers, texts, lists and dicts of them.
        directory: folder of all checkpoints; the job's own when ``None``.
        keep: this many newest checkpoints stay, older ones are removed; ``None`` keeps all.

    Returns:
        The checkpoint's folder.

    Raises:
        OSError: the disk is full or away; earlier checkpoints are untouched.
    """
    import torch

    staged = stage_checkpoint(step, directory=directory)
    try:
        with open(staged / STATE_FILE, "wb") as file:
            torch.save(state, file)
        return seal_checkpoint(step, metrics, directory=directory, keep=keep)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise


def latest(directory: Optional[Union[str, Path]] = None) -> Optional[Path]:
    """Where to start from: ``TRAINMASTER_RESUME_FROM``, else the newest complete checkpoint, else ``None``.

    Raises:
        CheckpointError: the platform names a checkpoint that is not there or not complete. Starting from the
            beginning instead would hide the loss.
    """
    wanted = current().resume_from
    if wanted is None:
        complete = complete_checkpoints(directory)
        return complete[-1] if complete else None
    if not wanted.exists() or (wanted.is_dir() and not (wanted / COMPLETE).exists()):
        raise CheckpointError(f"TRAINMASTER_RESUME_FROM: {wanted} is not a complete checkpoint")
    return wanted


def load_checkpoint(path: Union[str, Path], map_location: Any = "cpu") -> Checkpoint:
    """Read what :func:`save_checkpoint` wrote, or a lone file of ``torch.save``. Executes no code from the file.

    Raises:
        CheckpointError: not complete, or not readable as tensors and plain values.
    """
    import torch

    path = Path(path)
    meta = read_meta(path)
    file = path / STATE_FILE if path.is_dir() else path
    try:
        state = torch.load(file, map_location=map_location, weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{file}: cannot be read as a torch state; choose another checkpoint") from error
    return Checkpoint(path=path, step=int(meta.get("step") or 0), metrics=meta.get("metrics", {}), state=state)


def read_meta(path: Union[str, Path]) -> Dict[str, Any]:
    """``step`` and ``metrics`` of a complete checkpoint; empty for one that another program wrote.

    Raises:
        CheckpointError: the checkpoint is not complete, or its description is damaged.
    """
    path = Path(path)
    if not path.is_dir():
        return {}
    if not (path / COMPLETE).exists():
        raise CheckpointError(f"{path}: has no {COMPLETE} file, so it was never finished; choose another checkpoint")
    try:
        meta = json.loads((path / META_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CheckpointError(f"{path / META_FILE}: is damaged; choose another checkpoint") from error
    return meta if isinstance(meta, dict) else {}


def complete_checkpoints(directory: Optional[Union[str, Path]] = None) -> List[Path]:
    """All complete checkpoints, lowest step first."""
    return [path for path in _step_folders(_directory(directory)) if (path / COMPLETE).exists()]


def staged_path(step: int, *, directory: Optional[Union[str, Path]] = None) -> Path:
    """The folder in which the files of the coming checkpoint of ``step`` are gathered."""
    return _directory(directory) / f".{_name(step)}.a{current().attempt}.partial"


def stage_checkpoint(step: int, *, directory: Optional[Union[str, Path]] = None) -> Path:
    """An empty folder for the files of the coming checkpoint of ``step``; what a killed writer left there is gone."""
    staged = staged_path(step, directory=directory)
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    return staged


def seal_checkpoint(
    step: int,
    metrics: Optional[Mapping[str, Any]] = None,
    *,
    directory: Optional[Union[str, Path]] = None,
    keep: Optional[int] = 3,
) -> Path:
    """Turn the staged files of ``step`` into a complete checkpoint, remove old ones and tell the platform.

    Everything is flushed to the disk before ``.complete`` appears. Returns the checkpoint's folder.
    """
    if keep is not None and keep < 1:
        raise ValueError(f"keep: {keep} would remove the checkpoint just written; give at least 1, or None for all")
    root = _directory(directory)
    staged = staged_path(step, directory=root)
    meta = {"step": int(step), "metrics": report.plain_metrics(metrics or {})}
    (staged / META_FILE).write_text(json.dumps(meta) + "\n", encoding="utf-8")
    size_bytes = 0
    for path in sorted(staged.rglob("*")):
        if path.is_file():
            size_bytes += path.stat().st_size
        _fsync(path)
    _fsync(staged)

    final = root / _name(step)
    aside = root / f".{_name(step)}.a{current().attempt}.old"
    shutil.rmtree(aside, ignore_errors=True)
    if final.exists():  # a folder cannot be renamed over one that is not empty
        final.rename(aside)
    staged.rename(final)
    _fsync(root)
    with open(final / COMPLETE, "wb") as file:
        os.fsync(file.fileno())
    _fsync(final)

    _prune(root, written=final, keep=keep)
    report.checkpoint_written(_relative(final), step, metrics or {}, size_bytes)
    return final


def _prune(root: Path, *, written: Path, keep: Optional[int]) -> None:
    for path in root.iterdir():
        leftover = _LEFTOVER.match(path.name)
        # Of an earlier attempt: it may live on where nobody reaches it, but what it gathers is of no use any more.
        if leftover and int(leftover[1] or 0) <= current().attempt:
            shutil.rmtree(path, ignore_errors=True)
    if keep is None:
        return
    # A training that went back to an older step writes below checkpoints that are newer by number: never remove
    # the one just written.
    # Nor the one that this attempt came from: it is where a successor starts, should all that follows be of no use.
    kept = {written.resolve()}
    resumed = current().resume_from
    if resumed is not None:
        kept.add(resumed.resolve())
    for path in [path for path in complete_checkpoints(root)[:-keep] if path.resolve() not in kept]:
        # Without its mark it is no checkpoint any more, however far the removal gets.
        (path / COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)


def _step_folders(root: Path) -> List[Path]:
    if not root.is_dir():
        return []
    found = [(int(match[1]), path) for path in root.iterdir() for match in [_NAME.match(path.name)] if match]
    return [path for _, path in sorted(found)]


def _directory(directory: Optional[Union[str, Path]]) -> Path:
    return current().checkpoint_dir if directory is None else Path(directory)


def _name(step: int) -> str:
    if step < 0:
        raise ValueError(f"step: {step} is negative")
    return f"step-{int(step):08d}"


def _relative(path: Path) -> str:
    output = current().output_dir
    try:
        return path.resolve().relative_to(output.resolve()).as_posix()
    except ValueError:  # written elsewhere on purpose; the platform can only be told the path as it is
        return str(path)


def _fsync(path: Path) -> None:
    """Flush a file or a folder's entries to the disk."""
    if path.is_dir():
        # Some file systems (and Windows) know no such thing for folders; there is nothing better to do then.
        with suppress(OSError):
            _fsync_open(path, os.O_RDONLY)
    else:
        _fsync_open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)


def _fsync_open(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
