"""Resuming from the newest complete checkpoint of any format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, TypeVar, Union

from trainmaster_train import report
from trainmaster_train.checkpoint import formats, manifest, sharded
from trainmaster_train.checkpoint.errors import CheckpointError, DamagedError
from trainmaster_train.checkpoint.folder import STATE_FILE, newer_than, read_meta
from trainmaster_train.checkpoint.formats import FoundCheckpoint
from trainmaster_train.checkpoint.states import Checkpoint, load_checkpoint
from trainmaster_train.context import current

T = TypeVar("T")


def find_checkpoint(directory: Optional[Union[str, Path]] = None) -> Optional[FoundCheckpoint]:
    """The newest complete checkpoint of any format, for a framework that reads its ``path`` itself.

    Looks at ``TRAINMASTER_RESUME_FROM``, else into ``directory``; default: the job's ``checkpoints`` folder and its
    output folder itself. ``None`` if there is none.

    Raises:
        CheckpointError: the platform names a checkpoint that does not exist, and there is no newer one.
    """
    checkpoint = _candidates(directory)
    return checkpoint[0] if checkpoint else None


def resume(
    directory: Optional[Union[str, Path]] = None,
    *,
    into: Optional[Dict[str, Any]] = None,
    map_location: Any = "cpu",
    verify: bool = True,
) -> Optional[Checkpoint]:
    """Read the newest complete and undamaged checkpoint; ``None`` if there is no checkpoint.

    A damaged one is named on stderr, and the next older one is used. ``state`` is read from files of torch and of this
    library; for all other formats it is ``None``, and ``path`` is the argument for their framework.

    Args:
        directory: where to look, as in :func:`find_checkpoint`.
        into: the state (a dict of tensors, DTensors and values) into which a sharded checkpoint is read, in place,
            written by any number of processes. Then all processes of the default group call this together.
        verify: compare the files' hashes, if they were stored.

    Raises:
        CheckpointError: every complete checkpoint is damaged, reading the newest would run code, or the platform names
            one that does not exist. Starting from the beginning instead would hide the loss.
    """
    if into is not None:
        return sharded.on_all_ranks(
            lambda: _newest_undamaged(directory, lambda checkpoint: checkpoint, verify=verify),
            lambda checkpoint: _load_into(checkpoint, into),
        )
    return _newest_undamaged(directory, lambda checkpoint: _open(checkpoint, map_location), verify=verify)


def _candidates(directory: Optional[Union[str, Path]]) -> List[FoundCheckpoint]:
    context = current()
    path = context.resume_from
    if path is None:
        if directory is not None:
            return formats.find_all(Path(directory))
        candidates = formats.find_all(context.checkpoint_dir)
        # Frameworks without a `checkpoints` folder write into the output itself. Steps of different frameworks are not
        # comparable, so these come second.
        return candidates + formats.find_all(context.output_dir)
    chosen = formats.detect(path)
    siblings = formats.find_all(path.parent)
    if chosen is None and not path.exists():
        if newer_than(path) is None:
            raise CheckpointError(f"TRAINMASTER_RESUME_FROM: {path} does not exist; choose another checkpoint")
        _warn(f"TRAINMASTER_RESUME_FROM: {path} was pruned in favour of newer ones; using the newest of its folder")
        return siblings
    if chosen is None:
        _warn(f"TRAINMASTER_RESUME_FROM: {path} was never finished; looking for another one in its folder")
        return siblings
    # A newer checkpoint than the chosen one is not used.
    return [chosen, *[other for other in siblings if other.path != path and (other.step or 0) <= (chosen.step or 0)]]


def _verify(checkpoint: FoundCheckpoint, *, verify: bool) -> None:
    if checkpoint.format == "trainmaster":
        try:
            manifest.check(checkpoint.path, hashes=verify)
        except CheckpointError as error:
            raise DamagedError(str(error)) from error


def _newest_undamaged(
    directory: Optional[Union[str, Path]], use: Callable[[FoundCheckpoint], T], *, verify: bool
) -> Optional[T]:
    """The result of ``use`` for the newest checkpoint that is undamaged, also according to ``use``."""
    problem: Optional[CheckpointError] = None
    for candidate in _candidates(directory):
        try:
            _verify(candidate, verify=verify)
            return use(candidate)
        except DamagedError as error:
            problem = problem or CheckpointError(str(error))
            _warn(f"{error}; trying the one before it")
    if problem is not None:
        raise problem
    return None


def _open(checkpoint: FoundCheckpoint, map_location: Any) -> Checkpoint:
    state = None
    if checkpoint.format == "torch" or (checkpoint.path / STATE_FILE).is_file():
        try:
            state = load_checkpoint(checkpoint.path, map_location, verify=False).state
        except CheckpointError as error:
            if formats.is_proven(checkpoint.path):
                raise  # the file is intact: an older one would be rejected as well
            raise DamagedError(str(error)) from error
    return _resumed(checkpoint, state)


def _load_into(checkpoint: FoundCheckpoint, into: Dict[str, Any]) -> Checkpoint:
    sharded.load_sharded(into, checkpoint.path)
    return _resumed(checkpoint, into)


def _resumed(checkpoint: FoundCheckpoint, state: Any) -> Checkpoint:
    """The checkpoint with its description; the job's history gets an event."""
    meta = read_meta(checkpoint.path) if checkpoint.format == "trainmaster" else {}
    if current().is_writer:
        at = "" if checkpoint.step is None else f" at step {checkpoint.step}"
        report.append({"kind": "event", "reason": f"goes on from {checkpoint.path.name}{at} ({checkpoint.format})"})
    step = int(meta.get("step") or checkpoint.step or 0)
    return Checkpoint(checkpoint.path, step, meta.get("metrics", {}), state, checkpoint.format)


def _warn(sentence: str) -> None:
    print(f"trainmaster: {sentence}.", file=sys.stderr, flush=True)
