"""Atomic checkpoints in a folder: each is complete or absent.

A checkpoint is a folder ``<output>/checkpoints/step-00000100/`` with a ``checkpoint.json`` (step, metrics), whatever
files its writers put there (``state.pt`` for a torch state), a ``manifest.json`` with the size and hash of each, and an
empty ``.complete`` that is written last: a reader ignores every folder without it. Until then the files lie in
``.step-00000100.a2.partial/`` (of attempt 2), so a process that is killed at any instruction leaves the older
checkpoints unchanged, and an attempt that still runs on a disconnected node does not touch its successor's files.

One writer: :func:`save_checkpoint`. Several writers (each ps its own shard): one process calls
:func:`stage_checkpoint`, all write into that folder, then the first process calls :func:`seal_checkpoint`.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Set, Union

from trainmaster_train import report
from trainmaster_train.checkpoint import manifest
from trainmaster_train.checkpoint.errors import CheckpointError, raising_not_written
from trainmaster_train.checkpoint.validation import checked_directory, checked_step
from trainmaster_train.context import current

COMPLETE = ".complete"
KEEP_MARK = ".kept"  # the platform's mark in a folder that must never be pruned
STATE_FILE = "state.pt"
META_FILE = "checkpoint.json"

_NAME = re.compile(r"^step-(\d{1,18})$")
_LEFTOVER = re.compile(r"^\.step-(\d{1,18})(?:\.a(\d{1,9}))?\.(partial|old)$")


@dataclass(frozen=True)
class Keep:
    """Retention policy: which checkpoints stay when one is written; all others are removed.

    Args:
        last: number of newest ones; ``None`` keeps all.
        best: number of best ones by ``metric``, in addition. Checkpoints without that metric do not count.
        mode: ``"min"`` if a small value is good (a loss), ``"max"`` if a large one is (an accuracy).
    """

    last: Optional[int] = 3
    best: int = 0
    metric: str = "loss"
    mode: str = "min"

    def __post_init__(self) -> None:
        if self.last is not None and not isinstance(self.last, int):
            raise ValueError(f"keep: {self.last!r} is not a number of checkpoints; give one, a Keep, or None for all")
        if self.last is not None and self.last < 1:
            raise ValueError(
                f"keep: {self.last} would remove the checkpoint just written; give at least 1, or None for all"
            )
        if not isinstance(self.best, int) or self.best < 0:
            raise ValueError(f"best: {self.best!r} is not a number of best checkpoints to keep; give 0 for none")
        _check_mode(self.mode)


def latest(directory: Optional[Union[str, Path]] = None) -> Optional[Path]:
    """The checkpoint to start from: ``TRAINMASTER_RESUME_FROM``, else the newest complete one, else ``None``.

    A named checkpoint may have been pruned in favour of newer ones: then the newest complete one of its folder is
    used, and stderr says so. Only checkpoints of this library; :func:`find_checkpoint` also detects others.

    Raises:
        CheckpointError: the platform names a checkpoint that is missing or incomplete, and there is no newer one.
            Starting from the beginning instead would hide the loss.
    """
    resume_from = current().resume_from
    if resume_from is None:
        complete = complete_checkpoints(directory)
        return complete[-1] if complete else None
    if resume_from.exists() and (not resume_from.is_dir() or (resume_from / COMPLETE).exists()):
        return resume_from
    successor = newer_than(resume_from)
    if successor is None:
        raise CheckpointError(f"TRAINMASTER_RESUME_FROM: {resume_from} is not a complete checkpoint")
    sentence = (
        f"TRAINMASTER_RESUME_FROM: {resume_from} was pruned in favour of newer ones; going on from {successor.name}"
    )
    print(f"trainmaster: {sentence}.", file=sys.stderr, flush=True)
    return successor


def newer_than(pruned: Path) -> Optional[Path]:
    """The newest complete checkpoint next to ``pruned`` if its step is larger: then ``pruned`` may have been pruned for
    it.
    """
    match = _NAME.match(pruned.name)
    complete = complete_checkpoints(pruned.parent)
    if not match or not complete or complete[-1].name <= pruned.name:
        return None
    return complete[-1]


def best_checkpoint(metric: str, *, mode: str = "min", directory: Optional[Union[str, Path]] = None) -> Optional[Path]:
    """The complete checkpoint with the best ``metric``, the newer of two equal ones; ``None`` if none has it.

    Args:
        mode: as in :class:`Keep`.
    """
    best = _best_first(complete_checkpoints(directory), metric, mode)
    return best[0] if best else None


def read_meta(path: Union[str, Path]) -> Dict[str, Any]:
    """``step`` and ``metrics`` of a complete checkpoint; empty if another program wrote it.

    Raises:
        CheckpointError: the checkpoint is incomplete, or its description is damaged.
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
    except OSError as error:
        sentence = f"{path / META_FILE}: cannot be read ({error.strerror or error}); choose another checkpoint"
        raise CheckpointError(sentence) from error
    return meta if isinstance(meta, dict) else {}


def complete_checkpoints(directory: Optional[Union[str, Path]] = None) -> List[Path]:
    """All complete checkpoints, lowest step first."""
    root = checked_directory(directory)
    if not root.is_dir():
        return []
    folders: Dict[int, Path] = {}
    for path in sorted(root.iterdir()):  # names with a leading dot come first
        match = _NAME.match(path.name) or _LEFTOVER.match(path.name)
        # A complete `.old` folder was displaced by a newer one of the same step, whose writer was killed before the
        # end.
        if match and not path.name.endswith(".partial") and (path / COMPLETE).exists():
            folders[int(match[1])] = path
    return [path for _, path in sorted(folders.items())]


def staged_path(step: int, *, directory: Optional[Union[str, Path]] = None) -> Path:
    """The folder for the files of the checkpoint of ``step`` while it is written."""
    return checked_directory(directory) / f".{_name(step)}.a{current().attempt}.partial"


def stage_checkpoint(step: int, *, directory: Optional[Union[str, Path]] = None) -> Path:
    """Create an empty folder for the files of the checkpoint of ``step``; files of a killed writer are removed."""
    staged = staged_path(step, directory=directory)
    with raising_not_written(step, staged.parent):
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
    return staged


def seal_checkpoint(
    step: int,
    metrics: Optional[Mapping[str, Any]] = None,
    *,
    directory: Optional[Union[str, Path]] = None,
    keep: Optional[Union[int, Keep]] = 3,
    digests: Optional[Mapping[str, str]] = None,
) -> Path:
    """Turn the staged files of ``step`` into a complete checkpoint, prune old ones and notify the platform.

    Everything is flushed to the disk before ``.complete`` appears. A checkpoint of the same step is replaced; stderr
    says so, because two trainings may use one folder.

    Args:
        keep: which checkpoints stay: number of newest ones, a :class:`Keep`, or all (``None``).
        digests: known SHA-256 of staged files by their path in the folder; other files are read.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointNotWrittenError: the disk is full or unavailable; earlier checkpoints are unchanged.
    """
    policy = keep if isinstance(keep, Keep) else Keep(last=keep)
    root = checked_directory(directory)
    staged = staged_path(step, directory=root)
    final = root / _name(step)
    with raising_not_written(step, root):
        meta = {"step": int(step), "metrics": report.plain_metrics(metrics or {})}
        (staged / META_FILE).write_text(json.dumps(meta) + "\n", encoding="utf-8")
        made = manifest.make(staged, digests)
        (staged / manifest.MANIFEST_FILE).write_text(json.dumps(made) + "\n", encoding="utf-8")
        for path in sorted(staged.rglob("*")):
            flush_to_disk(path)
        flush_to_disk(staged)

        displaced = root / f".{_name(step)}.a{current().attempt}.old"
        if final.exists():  # a folder cannot replace a non-empty one by renaming
            sentence = f"{final}: a checkpoint of this step existed already; the new one replaces it"
            print(f"trainmaster: {sentence}.", file=sys.stderr, flush=True)
            shutil.rmtree(displaced, ignore_errors=True)
            final.rename(displaced)
        staged.rename(final)
        flush_to_disk(root)
        with open(final / COMPLETE, "wb") as file:
            os.fsync(file.fileno())
        flush_to_disk(final)

    _prune(root, written=final, step=int(step), keep=policy)
    size_bytes = sum(file["size_bytes"] for file in made["files"].values())
    report.checkpoint_written(_relative(final), step, metrics or {}, size_bytes)
    return final


def _prune(root: Path, *, written: Path, step: int, keep: Keep) -> None:
    # A training that went back to an older step writes a lower number than existing checkpoints have: never remove the
    # one just written. Nor the one from which this attempt resumed: a successor starts there if all later ones fail.
    retained = {written.resolve()}
    resumed = current().resume_from
    if resumed is not None:
        retained.add(resumed.resolve())
    for path in root.iterdir():
        leftover = _LEFTOVER.match(path.name)
        if not leftover or path.resolve() in retained:
            continue
        # Of an earlier attempt: it may still run on an unreachable node, but its files are useless now. Of this attempt
        # only the step just written: another writer of this attempt may be staging files of its own.
        age = int(leftover[2] or 0) - current().attempt
        if age < 0 or (age == 0 and int(leftover[1]) == step):
            _remove(path)
    if keep.last is None:
        return
    complete = complete_checkpoints(root)
    retained |= _resolved([path for path in complete if (path / KEEP_MARK).exists()])
    retained |= _resolved(complete[-keep.last :])
    if keep.best:
        retained |= _resolved(_best_first(complete, keep.metric, keep.mode)[: keep.best])
    for path in complete:
        if path.resolve() not in retained:
            _remove(path)


def _remove(path: Path) -> None:
    # First remove its mark, so that a partially removed folder is no checkpoint any more.
    with suppress(FileNotFoundError):
        (path / COMPLETE).unlink()
    shutil.rmtree(path, ignore_errors=True)


def _resolved(paths: List[Path]) -> Set[Path]:
    return {path.resolve() for path in paths}


def _best_first(complete: List[Path], metric: str, mode: str) -> List[Path]:
    _check_mode(mode)
    valued = []
    for age, path in enumerate(complete):
        with suppress(CheckpointError):  # a damaged description does not count
            value = read_meta(path).get("metrics", {}).get(metric)
            if isinstance(value, (int, float)) and math.isfinite(value):  # NaN is a text there
                valued.append((value if mode == "min" else -value, -age, path))
    return [path for _, _, path in sorted(valued)]


def _check_mode(mode: str) -> None:
    if mode not in ("min", "max"):
        raise ValueError(f"mode: {mode!r} is neither 'min' nor 'max'")


def _name(step: int) -> str:
    return f"step-{checked_step(step):08d}"


def _relative(path: Path) -> str:
    output = current().output_dir
    try:
        return path.resolve().relative_to(output.resolve()).as_posix()
    except ValueError:  # written outside of the output on purpose: report the path unchanged
        return str(path)


def flush_to_disk(path: Path) -> None:
    """Flush a file, or a folder's entries."""
    if path.is_dir():
        # Some file systems (and Windows) do not support this for folders.
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
