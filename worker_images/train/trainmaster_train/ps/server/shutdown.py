"""Saving the shard of a ps at shutdown: its current state, newer than any checkpoint.

There is one file for each ps, next to the checkpoints, written atomically. It is restored by a ps that is restarted
alone, and by all ps if all of them saved one at the same stop (in ``sync`` mode: at the same update).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List, Optional

from trainmaster_train.checkpoint import CheckpointError, complete_checkpoints
from trainmaster_train.context import Context
from trainmaster_train.ps.checkpoint.shard_checkpoint import load_file, save_file, shard_file
from trainmaster_train.ps.layout import difference
from trainmaster_train.ps.server.shard import Shard

FOLDER = ".stopped"


def save_shard(shard: Shard, context: Context) -> Path:
    """Write the file of ``shard``.

    Raises:
        OSError: the volume is full or unavailable; an earlier file is unchanged.
        MemoryError: there is not enough memory for the copy.
    """
    path = _path(shard, context, shard.ps)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    slabs, tables = shard.state()
    about: Dict[str, Any] = {"attempt": context.attempt, "version": shard.version}
    about.update(signature=dict(shard.layout.signature), rates=shard.learning_rates)
    try:
        save_file({**about, "slabs": slabs, "tables": tables}, partial)
        _flush(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    _flush(path.parent)
    return path


def remove_saved_shard(shard: Shard, context: Context) -> None:
    """Remove the file of ``shard``: the training is done, and its checkpoint is written."""
    path = _path(shard, context, shard.ps)
    with suppress(OSError):
        path.unlink()
        path.parent.rmdir()


def restore_saved_shard(shard: Shard, context: Context, *, mode: str, start: Optional[Path]) -> bool:
    """Restore ``shard`` from its saved file if that is newer than the checkpoint ``start``; returns whether it did.

    A request for an older checkpoint than the newest one takes precedence.
    """
    own = complete_checkpoints(context.checkpoint_dir)
    if own and (start is None or own[-1].resolve() != start.resolve()):
        return False
    saved = _read(shard, context, shard.ps)
    if saved is None or saved["version"] <= shard.version:
        return False
    if not _restarted_alone(saved, context, mode) and not _all_saved(saved, shard, context, mode):
        return False
    shard.restore(saved["slabs"], saved["tables"], int(saved["version"]), saved.get("rates"))
    return True


def _restarted_alone(saved: Dict[str, Any], context: Context, mode: str) -> bool:
    """Whether the other ps may have kept running. Outside the platform the attempt's number does not tell."""
    return saved["attempt"] == context.attempt and (context.is_in_platform or mode == "async")


def _all_saved(saved: Dict[str, Any], shard: Shard, context: Context, mode: str) -> bool:
    others: List[Optional[Dict[str, Any]]] = [_read(shard, context, ps) for ps in range(shard.count)]
    return all(
        other is not None
        and other["attempt"] == saved["attempt"]
        and (mode == "async" or other["version"] == saved["version"])
        for other in others
    )


def _read(shard: Shard, context: Context, ps: int) -> Optional[Dict[str, Any]]:
    """The saved state of ``ps``, if it is of this model and can be read."""
    path = _path(shard, context, ps)
    if not path.exists():
        return None
    try:
        saved = load_file(path)
    except CheckpointError as error:
        print(f"ps {shard.ps}: {error}.", flush=True)
        return None
    return saved if difference(shard.layout.signature, saved["signature"], settings=False) is None else None


def _path(shard: Shard, context: Context, ps: int) -> Path:
    return context.checkpoint_dir / FOLDER / shard_file(ps, shard.count)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
