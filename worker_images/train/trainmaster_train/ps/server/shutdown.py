"""What a ps leaves when it is stopped: its shard as it is then, newer than any checkpoint.

It lies in one file for each ps beside the checkpoints, is whole or not there, and is taken up when that fits: by a ps
that comes back alone, and by all of them when all left one at the same stop (in ``sync`` mode: at the same update).
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


def leave(shard: Shard, context: Context) -> Path:
    """Write the file of ``shard``.

    Raises:
        OSError: the volume is full or away; what was there is as it was.
        MemoryError: there is none for the copy.
    """
    path = _path(shard, context, shard.ps)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.partial")
    slabs, tables = shard.state()
    about: Dict[str, Any] = {"attempt": context.attempt, "version": shard.version}
    about.update(signature=dict(shard.layout.signature), rates=shard.learning_rates)
    try:
        save_file({**about, "slabs": slabs, "tables": tables}, aside)
        _flush(aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    _flush(path.parent)
    return path


def clear(shard: Shard, context: Context) -> None:
    """Remove the file of ``shard``: the training is done, and its checkpoint is written."""
    path = _path(shard, context, shard.ps)
    with suppress(OSError):
        path.unlink()
        path.parent.rmdir()


def take_up(shard: Shard, context: Context, *, mode: str, start: Optional[Path]) -> bool:
    """Fill ``shard`` with what it left, if that is newer than what it has of the checkpoint ``start``; whether it did.

    Who wants an older checkpoint than the newest one gets that.
    """
    own = complete_checkpoints(context.checkpoint_dir)
    if own and (start is None or own[-1].resolve() != start.resolve()):
        return False
    left = _read(shard, context, shard.ps)
    if left is None or left["version"] <= shard.version:
        return False
    if not _came_back_alone(left, context, mode) and not _all_left(left, shard, context, mode):
        return False
    shard.restore(left["slabs"], left["tables"], int(left["version"]), left.get("rates"))
    return True


def _came_back_alone(left: Dict[str, Any], context: Context, mode: str) -> bool:
    """Whether the other ps may have gone on all the time. By hand every attempt is the first: then nobody knows."""
    return left["attempt"] == context.attempt and (context.is_in_platform or mode == "async")


def _all_left(left: Dict[str, Any], shard: Shard, context: Context, mode: str) -> bool:
    everybody: List[Optional[Dict[str, Any]]] = [_read(shard, context, ps) for ps in range(shard.count)]
    return all(
        other is not None
        and other["attempt"] == left["attempt"]
        and (mode == "async" or other["version"] == left["version"])
        for other in everybody
    )


def _read(shard: Shard, context: Context, ps: int) -> Optional[Dict[str, Any]]:
    """What ``ps`` left, if it is of this model and can be read."""
    path = _path(shard, context, ps)
    if not path.exists():
        return None
    try:
        left = load_file(path)
    except CheckpointError as error:
        print(f"ps {shard.ps}: {error}.", flush=True)
        return None
    return left if difference(shard.layout.signature, left["signature"], settings=False) is None else None


def _path(shard: Shard, context: Context, ps: int) -> Path:
    return context.checkpoint_dir / FOLDER / shard_file(ps, shard.count)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
