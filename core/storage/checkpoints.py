"""Finding the checkpoint to resume from in a job's output."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from core.domain.errors import NotFound
from core.storage.tree import Tree

FOLDER: Final = "checkpoints"
MARKER: Final = ".complete"
_SUFFIXES: Final = frozenset({".pt", ".pth", ".ckpt", ".safetensors", ".npz", ".h5", ".keras"})
_STEP: Final = re.compile(r"(?:step|iter|iteration|global_step)[-_=.]?(\d{1,18})(?!\d)", re.IGNORECASE)
_EPOCH: Final = re.compile(r"(?:epoch|ep)[-_=.]?(\d{1,18})(?!\d)", re.IGNORECASE)
_NUMBER: Final = re.compile(r"(?<!\d)(\d{1,18})(?!\d)")
# A folder's size is summed over at most so many files: it is informative only.
_SIZE_FILES: Final = 10_000


@dataclass(frozen=True, slots=True)
class ResumableCheckpoint:
    """``path`` is relative to the output, such as ``checkpoints/step-100``. ``modified_at``: time of completion."""

    path: str
    step: int | None
    size_bytes: int
    modified_at: datetime
    is_dir: bool


def newest_complete(
    root: Path | Tree, *, since: datetime | None = None, except_paths: frozenset[str] = frozenset()
) -> ResumableCheckpoint | None:
    """The newest complete checkpoint directly under ``checkpoints/`` of the output folder ``root``.

    Complete is a folder with a ``.complete`` file, or a non-empty file with a known suffix. The largest step in the
    name is the newest; names without a step sort after all with one, the latest written first. Links are ignored: their
    targets are found themselves. ``None`` if there is none, or no such folder.

    Args:
        since: only those completed later.
        except_paths: ignored paths.
    """
    candidates = (
        found
        for found in _candidates(root)
        if (since is None or found.modified_at > since) and found.path not in except_paths
    )
    found = max(candidates, key=_rank, default=None)
    return None if found is None else _with_size(root, found)


def is_checkpoint_name(path: str) -> bool:
    """Whether the suffix is used for checkpoints alone."""
    return os.path.splitext(path)[1] in _SUFFIXES  # noqa: PTH122 (no Path per file)


def step_in(name: str) -> int | None:
    """The step in a file name: the number after "step", else after "epoch", else the last number."""
    stem = name
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    for pattern in (_STEP, _EPOCH, _NUMBER):
        numbers = pattern.findall(stem)
        if numbers:
            return int(numbers[-1])
    return None


def _rank(found: ResumableCheckpoint) -> tuple[bool, int, datetime, str]:
    return (found.step is not None, found.step or 0, found.modified_at, found.path)


def _candidates(root: Path | Tree) -> Iterator[ResumableCheckpoint]:
    tree = root if isinstance(root, Tree) else Tree(root)
    if not isinstance(root, Tree) and not root.is_dir():
        return
    try:
        with tree.open_folder(FOLDER) as folder, os.scandir(folder) as entries:
            for entry in entries:
                found = _resumable_checkpoint(folder, entry)
                if found is not None:
                    yield found
    except NotFound:
        return


def _resumable_checkpoint(folder: int, entry: os.DirEntry[str]) -> ResumableCheckpoint | None:
    if entry.name.endswith((".tmp", ".part")):
        return None
    try:
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            size = 0
            status = os.stat(f"{entry.name}/{MARKER}", dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                return None
            is_dir = True
        elif stat.S_ISREG(status.st_mode) and status.st_size and is_checkpoint_name(entry.name):
            size, is_dir = status.st_size, False
        else:
            return None
    except OSError:
        return None  # being written or deleted: not complete
    modified_at = datetime.fromtimestamp(status.st_mtime, UTC)
    return ResumableCheckpoint(f"{FOLDER}/{entry.name}", step_in(entry.name), size, modified_at, is_dir)


def _with_size(root: Path | Tree, found: ResumableCheckpoint) -> ResumableCheckpoint:
    if not found.is_dir:
        return found
    tree = root if isinstance(root, Tree) else Tree(root)
    try:
        with tree.open_folder(found.path) as folder:
            size = _sum_sizes(folder)
    except NotFound:
        size = 0
    return ResumableCheckpoint(found.path, found.step, size, found.modified_at, found.is_dir)


def _sum_sizes(folder: int) -> int:
    total = 0
    entry_count = 0
    for _, _, files, folder_fd in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
        for name in files:
            entry_count += 1
            if entry_count > _SIZE_FILES:
                return total
            try:
                status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            except OSError:
                continue
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total
