"""Files of a sharded checkpoint: each ps writes its own file into the folder that the chief staged, the chief writes
buffers and frozen parameters, and any number of ps can read them.

At shutdown each ps saves its shard, newer than any checkpoint, in one file next to the checkpoints, written atomically.
It is restored by a ps that is restarted alone, and by all ps if all of them saved one at the same stop (in ``sync``
mode: at the same update).
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Collection, Dict, List, Mapping, Optional, Tuple, Union

import torch

from trainmaster_train.checkpoint import CheckpointError, complete_checkpoints, latest
from trainmaster_train.checkpoint.errors import DamagedError
from trainmaster_train.checkpoint.folder import flush_to_disk
from trainmaster_train.checkpoint.manifest import HashedFile, check
from trainmaster_train.context import Context
from trainmaster_train.ps.layout import ShardLayout, difference, slice_of
from trainmaster_train.ps.server.shard import Shard, TensorAndState

LOCAL_FILE = "local.pt"  # state of the chief itself

STOPPED_FOLDER = ".stopped"


def write_shard(
    folder: Path, shard_state: Tuple[List[TensorAndState], Dict[str, TensorAndState]], about: Mapping[str, Any]
) -> Tuple[str, str]:
    """Write a shard's file; returns its name and its SHA-256.

    Args:
        about: ``ps``, ``count``, ``version``, the layout's ``signature`` and the learning ``rates``.

    Raises:
        OSError: the volume is full or unavailable.
    """
    slabs, tables = shard_state
    name = shard_file(about["ps"], about["count"])
    return name, save_file({**about, "slabs": slabs, "tables": tables}, folder / name)


def write_local(folder: Path, model: torch.nn.Module) -> Tuple[str, str]:
    """Write the chief's buffers and frozen parameters; returns the file's name and SHA-256."""
    return LOCAL_FILE, save_file(local_state(model), folder / LOCAL_FILE)


def local_state(model: torch.nn.Module) -> Dict[str, torch.Tensor]:
    """State that every replica has for itself: persistent buffers and frozen parameters."""
    trained = {name for name, value in model.named_parameters(remove_duplicate=False) if value.requires_grad}
    return {name: value for name, value in model.state_dict().items() if name not in trained}


def load_local(model: torch.nn.Module, path: Path) -> None:
    """Load the buffers and frozen parameters of a checkpoint, if it has them."""
    file = path / LOCAL_FILE
    if file.exists():
        _check_content(path, [LOCAL_FILE])
        model.load_state_dict(load_file(file), strict=False)


def newest_undamaged(replica_name: str) -> Optional[Path]:
    """The checkpoint to start from, as :func:`latest`; if that is damaged, the newest undamaged one before it, with a
    line in the log of ``replica_name``. All replicas see the same files, so all of them start from the same one.

    Raises:
        DamagedError: all of them are damaged. Starting from the beginning instead would hide the loss.
        CheckpointError: as :func:`latest`.
    """
    wanted = latest()
    while wanted is not None:
        problem: Optional[DamagedError] = None
        older = [path for path in complete_checkpoints(wanted.parent) if path.name < wanted.name]
        for path in [wanted, *reversed(older)]:
            try:
                check_files(path)
            except DamagedError as error:
                problem = problem or error
                if path.exists():
                    print(f"{replica_name}: {error}; trying the one before it.", flush=True)
                continue
            return path
        before, wanted = wanted, latest()
        if wanted == before and problem is not None:
            raise problem
        # It was just pruned in favour of a newer one.
    return None


def check_files(path: Path) -> None:
    """Check that the checkpoint has all files with their sizes, and that each can be opened. Contents are verified when
    they are read: all of them may be more than one replica can read in reasonable time.

    Raises:
        DamagedError: a file is missing or damaged.
    """
    try:
        check(path, hashes=False)
    except CheckpointError as error:
        raise DamagedError(str(error)) from error
    _load_all(path)
    if (path / LOCAL_FILE).exists():
        load_file(path / LOCAL_FILE)


def restore_shard(shard: Shard, path: Path) -> None:
    """Restore this shard's part of the checkpoint ``path``, written by any number of ps.

    Raises:
        CheckpointError: it is of another model or optimizer, or incomplete.
        DamagedError: the content that this shard reads is damaged. Other ps may not notice, so none may use an older
            checkpoint instead: the shards would not match.
    """
    files = _read_all(path, shard.layout)
    read = [shard.ps] if len(files) == shard.count else range(len(files))
    _check_content(path, [shard_file(ps, len(files)) for ps in read])
    slabs: List[TensorAndState] = []
    for number, slab in enumerate(shard.layout.slabs):
        begin, end = slice_of(slab.size, shard.ps, shard.count)
        slabs.append(_slab_part(files, number, slab.size, begin, end))
    tables = {
        table.name: _table_part(files, table.name, torch.arange(shard.ps, table.rows, shard.count))
        for table in shard.layout.tables
    }
    # The same number for all, so that they continue to count together.
    # Files of earlier versions have no learning rates.
    shard.restore(slabs, tables, max(0, int(files[0]["version"])), files[0].get("rates"))


def load_model(model: torch.nn.Module, path: Union[str, Path]) -> torch.nn.Module:
    """Load parameters and buffers of ``model`` from a checkpoint of parameter servers. Returns ``model``.

    Needs neither a ps nor the optimizer: for evaluation, and for using the trained model.

    Raises:
        CheckpointError: the checkpoint is of another model, or incomplete.
    """
    path = Path(path)
    files = _read_all(path, None)
    _check_content(path, [shard_file(ps, len(files)) for ps in range(len(files))])
    parameters = dict(model.named_parameters())
    _check_shapes(parameters, files[0]["signature"], path)
    with torch.no_grad():
        tables = {tensor[0] for tensor in files[0]["signature"]["tensors"] if tensor[4]}
        for name in tables:
            whole = torch.arange(len(parameters[name]))
            parameters[name].copy_(_table_part(files, name, whole)[0])
        for number, members in enumerate(_members(files[0]["signature"])):
            size = members[-1][2]
            values, _ = _slab_part(files, number, size, 0, size)
            for name, begin, end in members:
                parameters[name].copy_(values[begin:end].view(parameters[name].shape))
    load_local(model, path)
    return model


def shard_file(ps: int, count: int) -> str:
    """The name of the file of ps ``ps`` of ``count``."""
    return f"shard-{ps:05d}-of-{count:05d}.pt"


def _check_content(path: Path, files: Collection[str]) -> None:
    """Verify the contents of ``files`` of a checkpoint. Raises ``DamagedError``."""
    try:
        check(path, only=files)
    except CheckpointError as error:
        raise DamagedError(str(error)) from error


def _members(signature: Mapping[str, Any]) -> List[List[Tuple[str, int, int]]]:
    """The slabs of a signature: name, begin and end of each tensor. The same order as ``layout_of``."""
    slabs: Dict[Tuple[int, str], List[Tuple[str, int, int]]] = {}
    for name, shape, dtype, group, is_table in signature["tensors"]:
        size = 1
        for length in shape:
            size *= length
        if not is_table and size:
            members = slabs.setdefault((group, dtype), [])
            begin = members[-1][2] if members else 0
            members.append((name, begin, begin + size))
    return list(slabs.values())


def _check_shapes(parameters: Mapping[str, torch.Tensor], signature: Mapping[str, Any], path: Path) -> None:
    for name, shape, *_ in signature["tensors"]:
        if name not in parameters:
            raise CheckpointError(f"{path} is of another model: it has `{name}`, this one does not")
        if list(parameters[name].shape) != shape:
            raise CheckpointError(
                f"{path} is of another model: its `{name}` is {shape}, this one's {list(parameters[name].shape)}"
            )


def _slab_part(files: List[Dict[str, Any]], number: int, size: int, begin: int, end: int) -> TensorAndState:
    """Values and state of the elements ``begin`` to ``end`` of a slab."""
    pieces: List[torch.Tensor] = []
    states: List[Dict[str, torch.Tensor]] = []
    for ps, file in enumerate(files):
        first, last = slice_of(size, ps, len(files))
        piece = slice(max(begin, first) - first, max(min(end, last), first) - first)
        if piece.start < piece.stop:
            values, state = file["slabs"][number]
            pieces.append(values[piece])
            states.append({key: value[piece] if value.dim() else value for key, value in state.items()})
    if not pieces:
        return torch.empty(0), {}
    state = {
        key: torch.cat([part[key] for part in states]) if value.dim() else value for key, value in states[0].items()
    }
    return torch.cat(pieces), state


def _table_part(files: List[Dict[str, Any]], name: str, rows: torch.Tensor) -> TensorAndState:
    """Values and state of ``rows`` (indices in the whole table)."""
    count = len(files)
    values, state = files[0]["tables"][name]
    part = torch.empty(len(rows), values.shape[1], dtype=values.dtype)
    states = {key: torch.empty_like(part) if value.dim() else value for key, value in state.items()}
    for ps, file in enumerate(files):
        is_local = (rows % count == ps).nonzero().flatten()
        places = rows[is_local] // count
        values, state = file["tables"][name]
        part[is_local] = values[places]
        for key, value in states.items():
            if value.dim() and key in state:
                value[is_local] = state[key][places]
    return part, states


def _read_all(path: Path, layout: Optional[ShardLayout]) -> List[Dict[str, Any]]:
    """The shards' files of a checkpoint in order, checked against ``layout``."""
    files = _load_all(path)
    if layout is not None:
        for file in files:
            found = difference(layout.signature, file["signature"], settings=False)
            if found is not None:
                raise CheckpointError(
                    f"{path} is of another model: {found} (here: this script, there: the checkpoint); "
                    "choose another output, or the same model"
                )
    return files


def _load_all(path: Path) -> List[Dict[str, Any]]:
    """The shards' files of a checkpoint in order. Raises ``DamagedError``."""
    names = sorted(path.glob("shard-*-of-*.pt"))
    if not names or len(names) != int(names[0].stem.rpartition("-")[2]):
        raise DamagedError(f"{path} does not hold all shards of a parameter server's checkpoint; choose another one")
    return [load_file(name) for name in names]


def load_file(file: Path) -> Dict[str, Any]:
    """Map a file of :func:`save_file`. Raises ``DamagedError``."""
    try:
        # Mapped: a ps reads only its own part of any number of files. No code in them is executed.
        loaded: Dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        return loaded
    except Exception as error:
        raise DamagedError(f"{file}: cannot be read as a shard; choose another checkpoint") from error


def save_file(value: Mapping[str, Any], path: Path) -> str:
    """Write; returns the file's SHA-256. Sealing the checkpoint flushes it to the disk.

    Raises:
        OSError: the volume is full or unavailable.
    """
    file: Any = HashedFile(path)
    try:
        torch.save(dict(value), file)
        file.check()
    finally:
        file.close()
    return str(file.hexdigest())


def save_shard(shard: Shard, context: Context) -> Path:
    """Write the file of ``shard``.

    Raises:
        OSError: the volume is full or unavailable; an earlier file is unchanged.
        MemoryError: there is not enough memory for the copy.
    """
    path = _saved_path(shard, context, shard.ps)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    slabs, tables = shard.state()
    about: Dict[str, Any] = {"attempt": context.attempt, "version": shard.version}
    about.update(signature=dict(shard.layout.signature), rates=shard.learning_rates)
    try:
        save_file({**about, "slabs": slabs, "tables": tables}, partial)
        flush_to_disk(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    flush_to_disk(path.parent)
    return path


def remove_saved_shard(shard: Shard, context: Context) -> None:
    """Remove the file of ``shard``: the training is done, and its checkpoint is written."""
    path = _saved_path(shard, context, shard.ps)
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
    saved = _read_saved(shard, context, shard.ps)
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
    others: List[Optional[Dict[str, Any]]] = [_read_saved(shard, context, ps) for ps in range(shard.count)]
    return all(
        other is not None
        and other["attempt"] == saved["attempt"]
        and (mode == "async" or other["version"] == saved["version"])
        for other in others
    )


def _read_saved(shard: Shard, context: Context, ps: int) -> Optional[Dict[str, Any]]:
    """The saved state of ``ps``, if it is of this model and can be read."""
    path = _saved_path(shard, context, ps)
    if not path.exists():
        return None
    try:
        saved = load_file(path)
    except CheckpointError as error:
        print(f"ps {shard.ps}: {error}.", flush=True)
        return None
    return saved if difference(shard.layout.signature, saved["signature"], settings=False) is None else None


def _saved_path(shard: Shard, context: Context, ps: int) -> Path:
    return context.checkpoint_dir / STOPPED_FOLDER / shard_file(ps, shard.count)
