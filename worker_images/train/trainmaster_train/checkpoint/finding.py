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
    found = _candidates(directory)
    return found[0] if found else None


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
            lambda: _newest_undamaged(directory, lambda found: found, verify=verify),
            lambda found: _load_into(found, into),
        )
    return _newest_undamaged(directory, lambda found: _open(found, map_location), verify=verify)


def _candidates(directory: Optional[Union[str, Path]]) -> List[FoundCheckpoint]:
    context = current()
    wanted = context.resume_from
    if wanted is None:
        if directory is not None:
            return formats.find_all(Path(directory))
        found = formats.find_all(context.checkpoint_dir)
        # Frameworks without a `checkpoints` folder write into the output itself. Steps of different frameworks are not
        # comparable, so these come second.
        return found + formats.find_all(context.output_dir)
    chosen = formats.detect(wanted)
    siblings = formats.find_all(wanted.parent)
    if chosen is None and not wanted.exists():
        if newer_than(wanted) is None:
            raise CheckpointError(f"TRAINMASTER_RESUME_FROM: {wanted} does not exist; choose another checkpoint")
        _warn(f"TRAINMASTER_RESUME_FROM: {wanted} was pruned in favour of newer ones; using the newest of its folder")
        return siblings
    if chosen is None:
        _warn(f"TRAINMASTER_RESUME_FROM: {wanted} was never finished; looking for another one in its folder")
        return siblings
    # A newer checkpoint than the chosen one is not used.
    return [chosen, *[other for other in siblings if other.path != wanted and (other.step or 0) <= (chosen.step or 0)]]


def _verify(found: FoundCheckpoint, *, verify: bool) -> None:
    if found.format == "trainmaster":
        try:
            manifest.check(found.path, hashes=verify)
        except CheckpointError as error:
            raise DamagedError(str(error)) from error


def _newest_undamaged(
    directory: Optional[Union[str, Path]], use: Callable[[FoundCheckpoint], T], *, verify: bool
) -> Optional[T]:
    """The result of ``use`` for the newest checkpoint that is undamaged, also according to ``use``."""
    problem: Optional[CheckpointError] = None
    for found in _candidates(directory):
        try:
            _verify(found, verify=verify)
            return use(found)
        except DamagedError as error:
            problem = problem or CheckpointError(str(error))
            _warn(f"{error}; trying the one before it")
    if problem is not None:
        raise problem
    return None


def _open(found: FoundCheckpoint, map_location: Any) -> Checkpoint:
    state = None
    if found.format == "torch" or (found.path / STATE_FILE).is_file():
        try:
            state = load_checkpoint(found.path, map_location, verify=False).state
        except CheckpointError as error:
            if formats.is_proven(found.path):
                raise  # the file is intact: an older one would be rejected as well
            raise DamagedError(str(error)) from error
    return _resumed(found, state)


def _load_into(found: FoundCheckpoint, into: Dict[str, Any]) -> Checkpoint:
    sharded.load_sharded(into, found.path)
    return _resumed(found, into)


def _resumed(found: FoundCheckpoint, state: Any) -> Checkpoint:
    """The checkpoint with its description; the job's history gets an event."""
    meta = read_meta(found.path) if found.format == "trainmaster" else {}
    if current().is_writer:
        at_step = "" if found.step is None else f" at step {found.step}"
        report.append({"kind": "event", "reason": f"goes on from {found.path.name}{at_step} ({found.format})"})
    step = int(meta.get("step") or found.step or 0)
    return Checkpoint(found.path, step, meta.get("metrics", {}), state, found.format)


def _warn(sentence: str) -> None:
    print(f"trainmaster: {sentence}.", file=sys.stderr, flush=True)
