"""Format detection and dispatch."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from core.inspection.files import File, Folder
from core.inspection.formats import hdf5, numpy_files, xgboost
from core.inspection.formats.dcp import METADATA, open_dcp
from core.inspection.formats.parameter_server import SHARD, open_shards
from core.inspection.formats.safetensors import open_safetensors
from core.inspection.formats.tensorflow import open_tensorflow
from core.inspection.formats.torch_files import open_torch
from core.inspection.layers import is_optimizer_name
from core.inspection.model import CheckpointContents, Unreadable
from core.storage.tree import Tree

_INDEX: Final = (".safetensors.index.json", ".bin.index.json")
_INDEX_LIMIT: Final = 64 * 2**20
_TORCH: Final = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
_FILES_LIMIT: Final = 2_000
_HDF5: Final = b"\x89HDF\r\n\x1a\n"
_OPTIMIZER_FILE: Final = re.compile(r"(^|[-_.])(optimizer|optim|opt|scheduler)s?([-_.]|$)", re.IGNORECASE)


def open_checkpoint(tree: Tree, path: str) -> CheckpointContents:
    """The contents of the file, the folder, or the files of the TensorFlow prefix ``path``. Files stay open with the
    tensors.

    Raises:
        Unreadable: unknown format, damaged, incomplete, or gone.
        TrainmasterError: the path leads out of the tree, or the volume is away.
    """
    parent, _, name = path.rpartition("/")
    folder = Folder(tree, parent)
    if not tree.exists(path):
        if folder.has(f"{name}.index"):
            return _named(open_tensorflow(folder, name))
        raise Unreadable(f"{path} is not there (any more).")
    contents = open_folder(Folder(tree, path)) if tree.stat(path).is_dir else open_file(folder.file(name))
    return _named(contents)


def open_file(file: File) -> CheckpointContents:
    """One file, by its first bytes, or by its name where these are ambiguous. Raises ``Unreadable``."""
    name = PurePosixPath(file.name).name.lower()
    if file.size == 0:
        raise Unreadable(f"{file.name} is empty; its writer may not have finished it.")
    head = file.read(0, min(16, file.size))
    if head.startswith(_HDF5):
        return hdf5.open_hdf5(file)
    if head.startswith(b"\x93NUMPY"):
        return numpy_files.open_npy(file)
    if head.startswith(b"PK\x03\x04"):
        if name.endswith(".keras"):
            return hdf5.open_keras(file)
        return numpy_files.open_npz(file) if name.endswith(".npz") else open_torch(file)
    if name.endswith((".json", ".ubj", ".model")) and head[:1] == b"{":
        return xgboost.open_xgboost(file)
    if name.endswith(".safetensors") or head[8:9] == b"{":
        return open_safetensors(file)
    if head[:1] == b"\x80":
        return open_torch(file)
    raise Unreadable(f"{file.name} is of no known format, or its beginning was not written.")


def open_folder(folder: Folder) -> CheckpointContents:
    """Raises ``Unreadable``."""
    names = folder.names()
    described = next((name for name in names if PurePosixPath(name).name == METADATA), None)
    if described is not None:
        return open_dcp(folder, described[: -len(METADATA)].rstrip("/"))
    shards = [name for name in names if SHARD.match(name)]
    if shards:
        contents = open_shards(folder, shards)
        if "local.pt" in names:
            contents.take(open_torch(folder.file("local.pt")))
        return contents
    if any(name in names for name in ("saved_model.pb", "saved_model.pbtxt")):
        if "variables/variables.index" not in names:
            raise Unreadable("It is a SavedModel without variables; the graph alone has no tensors to show.")
        contents = open_tensorflow(folder, "variables/variables")
        contents.format = "savedmodel"
        return contents
    return _open_files(folder, names)


def _open_files(folder: Folder, names: list[str]) -> CheckpointContents:
    """A folder of files of any kind: all known formats, tensor names prefixed by the file's if there are several."""
    sharded = _sharded(folder, names)
    prefixes = [name.removesuffix(".index") for name in names if name.endswith(".index")]
    files = [name for name in names if _is_wanted(name)]
    if not files and not prefixes:
        raise Unreadable("It holds no file of a known format.")
    if len(files) > _FILES_LIMIT:
        raise Unreadable(f"It holds more than {_FILES_LIMIT:,} files of tensors.")
    whole = CheckpointContents("")
    for name in sorted(sharded - set(names)):
        whole.note(f"{name}, which the index names, is missing; the checkpoint is not whole.")
    weights = [name for name in files if not _OPTIMIZER_FILE.search(PurePosixPath(name).stem)]
    problems: list[Unreadable] = []
    for name in [*files, *prefixes]:
        try:
            found = open_tensorflow(folder, name) if name in prefixes else open_file(folder.file(name))
        except Unreadable as error:
            problems.append(error)
            whole.note(error.sentence)
            continue
        is_plain = name in sharded or (len(weights) == 1 and name in weights) or len(files) + len(prefixes) == 1
        if name in files and name not in weights:
            found.tensors = [replace(tensor, is_optimizer=True) for tensor in found.tensors]
        whole.format = whole.format or found.format
        whole.take(found, "" if is_plain else f"{PurePosixPath(name).stem}.")
    if problems and not whole.tensors:
        raise problems[0]
    if sharded and not whole.format:
        whole.format = "safetensors"
    return whole


def _is_wanted(name: str) -> bool:
    base = PurePosixPath(name).name
    if base.startswith(("rng_state", "training_args")):
        return False
    return base.endswith((*_TORCH, ".safetensors", ".npz", ".npy", ".h5", ".keras", ".ubj")) or base == "model.json"


def _sharded(folder: Folder, names: list[str]) -> set[str]:
    """The files named by an index of the Hugging Face kind."""
    found: set[str] = set()
    for name in names:
        if name.endswith(_INDEX):
            file = folder.file(name)
            if file.size > _INDEX_LIMIT:
                raise Unreadable(f"{name} is too large to be looked into.")
            try:
                shards = json.loads(file.read(0, file.size))["weight_map"].values()
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise Unreadable(f"{name} is damaged: it names no files of tensors.") from error
            parent = str(PurePosixPath(name).parent)
            found |= {str(shard) if parent == "." else f"{parent}/{shard}" for shard in shards}
    return found


def _named(contents: CheckpointContents) -> CheckpointContents:
    """Make tensor names unique, and detect optimizer tensors by name."""
    counts: dict[str, int] = {}
    named = []
    for tensor in contents.tensors:
        number = counts.get(tensor.name, 0)
        counts[tensor.name] = number + 1
        changes: dict[str, object] = {}
        if number:
            changes["name"] = f"{tensor.name} ({number + 1})"
        if not tensor.is_optimizer and is_optimizer_name(tensor.name):
            changes["is_optimizer"] = True
        named.append(replace(tensor, **changes) if changes else tensor)  # type: ignore[arg-type]
    contents.tensors = named
    return contents
