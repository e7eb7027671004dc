"""Detection of complete checkpoints of any format: files and folders from which training can be resumed.

Nothing is loaded and no code of a file is run: each format has a mark that only a finished writer leaves, such as the
directory at the end of a zip file, or the length in a header. The pickled metadata of ``torch.distributed.checkpoint``
is read without executing its code.

===========  ===========================================================================================================
trainmaster  a folder with a ``.complete`` file, and every file of its manifest with its size
dcp          torch.distributed.checkpoint: a folder with all bytes that its ``.metadata`` lists
huggingface  ``checkpoint-500/``: ``trainer_state.json``, all shards of its index, every file complete
torch        ``.pt``, ``.pth``, ``.bin``: a complete zip file, or a file of torch before 1.6
lightning    ``.ckpt``, as torch
safetensors  as long as its header says
keras        ``.keras``: a complete zip file; ``.h5``: as long as its superblock says
numpy        ``.npz``: a complete zip file
tensorflow   ``ckpt-5.index`` with its footer, and all its ``.data-…-of-…`` files; ``path`` is the prefix
===========  ===========================================================================================================
"""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from trainmaster_train.checkpoint import manifest
from trainmaster_train.checkpoint.errors import CheckpointError
from trainmaster_train.checkpoint.folder import COMPLETE, complete_checkpoints, read_meta

FORMATS = (
    "trainmaster",
    "dcp",
    "huggingface",
    "torch",
    "lightning",
    "safetensors",
    "keras",
    "numpy",
    "tensorflow",
)

_SUFFIXES = (".safetensors", ".weights.h5", ".keras", ".ckpt", ".pth", ".npz", ".bin", ".pt", ".h5")
# Same rule as on the platform: the number after "step", else after "epoch", else the last one.
_STEPS = (
    re.compile(r"(?:step|iter|iteration|global_step)[-_=.]?(\d{1,18})(?!\d)", re.IGNORECASE),
    re.compile(r"(?:epoch|ep)[-_=.]?(\d{1,18})(?!\d)", re.IGNORECASE),
    re.compile(r"(?<!\d)(\d{1,18})(?!\d)"),
)
_HUGGINGFACE = ("trainer_state.json", "config.json", "adapter_config.json")
_SHARD = re.compile(r"^(?P<prefix>.+)\.data-\d{5}-of-(?P<count>\d{5})$")
_TABLE_FOOTER = struct.pack("<Q", 0xDB4775248B80FB57)  # the magic number of LevelDB's tables, which an .index is
_HDF5 = b"\x89HDF\r\n\x1a\n"
_HEADER_LIMIT = 100 * 2**20  # safetensors' own limit

_FORMAT_OF = {
    ".pt": "torch",
    ".pth": "torch",
    ".bin": "torch",
    ".ckpt": "lightning",
    ".safetensors": "safetensors",
    ".keras": "keras",
    ".npz": "numpy",
    ".h5": "keras",
    ".weights.h5": "keras",
}

DCP_METADATA_FILE = ".metadata"


@dataclass(frozen=True)
class FoundCheckpoint:
    """A complete checkpoint. ``path``: the argument for its framework (for TensorFlow a prefix, else file or folder).

    ``step``: from its files or its name; ``None`` if unknown. ``modified_at``: seconds since 1970.
    """

    path: Path
    format: str
    step: Optional[int]
    modified_at: float


def find_all(folder: Path) -> List[FoundCheckpoint]:
    """The complete checkpoints directly in ``folder``, ordered by step and time, the newest first.

    Checkpoints with an unknown step come last. Incomplete ones are left out.
    """
    checkpoints = [candidate for path in _entries(folder) for candidate in [detect(path)] if candidate is not None]
    checkpoints += [
        FoundCheckpoint(path, "trainmaster", _number_in(path.name), path.stat().st_mtime)
        for path in complete_checkpoints(folder)
        if path.name.startswith(".") and _is_whole(path)  # displaced by one that was never finished
    ]
    checkpoints += _tensorflow(folder)
    return sorted(checkpoints, key=_rank, reverse=True)


def detect(path: Path) -> Optional[FoundCheckpoint]:
    """The complete checkpoint at ``path``, or ``None``."""
    try:
        if path.is_dir():
            return _detect_folder(path)
        if path.is_file():
            return _detect_file(path)
        return next((candidate for candidate in _tensorflow(path.parent) if candidate.path == path), None)
    except OSError:
        return None  # being written or removed at this moment


def is_proven(path: Path) -> bool:
    """Whether a file's format proves that it is complete; for files of torch before 1.6 only loading shows that."""
    if path.is_dir():
        return True
    with open(path, "rb") as file:
        return not _is_old_torch(file.read(2))


def _entries(folder: Path) -> List[Path]:
    try:
        # Names with a leading dot or one of these endings are temporary files of a writer.
        return [
            path
            for path in folder.iterdir()
            if not path.name.startswith(".") and not path.name.endswith((".tmp", ".part", ".partial", ".incomplete"))
        ]
    except OSError:
        return []


def _rank(checkpoint: FoundCheckpoint) -> Tuple[bool, int, float, str]:
    return (checkpoint.step is not None, checkpoint.step or 0, checkpoint.modified_at, str(checkpoint.path))


def _detect_folder(path: Path) -> Optional[FoundCheckpoint]:
    modified_at = path.stat().st_mtime
    if (path / COMPLETE).is_file():
        if not _is_whole(path):
            return None
        step = read_meta(path).get("step")
        return FoundCheckpoint(
            path, "trainmaster", step if isinstance(step, int) else _number_in(path.name), modified_at
        )
    if (path / DCP_METADATA_FILE).is_file():
        return FoundCheckpoint(path, "dcp", _number_in(path.name), modified_at) if _is_whole_dcp(path) else None
    if any((path / name).is_file() for name in _HUGGINGFACE):
        step = _huggingface_step(path)
        return None if step is None else FoundCheckpoint(path, "huggingface", step[0], modified_at)
    return None


def _is_whole(path: Path) -> bool:
    try:
        manifest.check(path, hashes=False)
        read_meta(path)
    except (CheckpointError, OSError):
        return False
    return True


def _huggingface_step(path: Path) -> Optional[Tuple[Optional[int]]]:
    """The step of a complete checkpoint, which may be unknown; ``None`` for an incomplete one."""
    step = _number_in(path.name)
    names = {entry.name for entry in path.iterdir()}
    try:
        if "trainer_state.json" in names:
            step = int(json.loads((path / "trainer_state.json").read_bytes())["global_step"])
        elif path.name.startswith("checkpoint-"):
            return None  # the trainer writes its state last
        indices = [name for name in names if name.endswith((".safetensors.index.json", ".bin.index.json"))]
        shards = {str(shard) for name in indices for shard in _weights(path / name).values()}
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    tensors = [name for name in names if _suffix(name) in (".safetensors", ".bin", ".pt", ".pth")]
    if not shards <= names or not tensors:
        return None
    return (step,) if all(_WHOLE[_suffix(name)](path / name) for name in tensors) else None


def _weights(index: Path) -> Dict[str, str]:
    weight_map: Dict[str, str] = json.loads(index.read_bytes())["weight_map"]
    return weight_map


def _detect_file(path: Path) -> Optional[FoundCheckpoint]:
    suffix = _suffix(path.name)
    if suffix not in _WHOLE or not _WHOLE[suffix](path):
        return None
    return FoundCheckpoint(path, _FORMAT_OF[suffix], _number_in(path.name), path.stat().st_mtime)


def _suffix(name: str) -> str:
    return next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), "")


def _number_in(name: str) -> Optional[int]:
    suffix = _suffix(name)
    stem = name[: len(name) - len(suffix)] if suffix else name
    for pattern in _STEPS:
        numbers = pattern.findall(stem)
        if numbers:
            return int(numbers[-1])
    return None


def _is_whole_zip(path: Path) -> bool:
    """Whether the zip directory, which is written last, and all files that it lists are there."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = path.stat().st_size
            return all(entry.header_offset + entry.compress_size <= size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, struct.error):
        return False


def _is_whole_torch(path: Path) -> bool:
    with open(path, "rb") as file:
        if _is_old_torch(file.read(2)):
            return True
    return _is_whole_zip(path)


def _is_old_torch(head: bytes) -> bool:
    """Before torch 1.6: a pickle followed by the tensors. Only loading it shows whether it is complete."""
    return head in (b"\x80\x02", b"\x80\x03", b"\x80\x04")


def _is_whole_safetensors(path: Path) -> bool:
    with open(path, "rb") as file:
        length = file.read(8)
        if len(length) < 8:
            return False
        header_bytes = int.from_bytes(length, "little")
        if header_bytes > _HEADER_LIMIT:
            return False
        try:
            header = json.loads(file.read(header_bytes))
            ends = [int(of["data_offsets"][1]) for name, of in header.items() if name != "__metadata__"]
        except (ValueError, LookupError, TypeError, AttributeError):
            return False
    return path.stat().st_size == 8 + header_bytes + max(ends, default=0)


def _is_whole_hdf5(path: Path) -> bool:
    """Whether the file ends where its superblock says, which it does not if the writer was killed."""
    with open(path, "rb") as file:
        head = file.read(64)
    if not head.startswith(_HDF5) or len(head) < 48:
        return False
    # HDF5 File Format Specification, III.A: addresses have 8 bytes in every file from a 64-bit machine.
    version = head[8]
    begin = 40 if version == 0 else 44 if version == 1 else 28
    end = int.from_bytes(head[begin : begin + 8], "little")
    return path.stat().st_size == end


def _tensorflow(folder: Path) -> Iterator[FoundCheckpoint]:
    shards: Dict[str, List[str]] = {}
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        match = _SHARD.match(name)
        if match:
            shards.setdefault(match["prefix"], []).append(match["count"])
    for prefix, counts in shards.items():
        index = folder / f"{prefix}.index"
        with suppress(OSError):
            # The index is written after all the data, and put in place by renaming.
            if len(set(counts)) == 1 and len(counts) == int(counts[0]) and _ends_with(index, _TABLE_FOOTER):
                yield FoundCheckpoint(folder / prefix, "tensorflow", _number_in(prefix), index.stat().st_mtime)


def _ends_with(path: Path, end: bytes) -> bool:
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        if file.tell() < len(end):
            return False
        file.seek(-len(end), os.SEEK_END)
        return file.read() == end


class _PassiveRecord:
    """A passive stand-in for any object of torch: its arguments and its state."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})

    def __setitem__(self, key: Any, value: Any) -> None:
        """Ignore entries of torch's own mappings; they are not needed."""

    def append(self, value: Any) -> None:
        """Ignore items of lists, too."""

    def __hash__(self) -> int:
        return id(self)


class _PassiveUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        del module, name
        return _PassiveRecord


def _is_whole_dcp(folder: Path) -> bool:
    """Whether the files have all bytes that the metadata lists. The metadata itself is written last."""
    try:
        ends = _stored_ends(folder / DCP_METADATA_FILE)
        return all((folder / name).stat().st_size >= end for name, end in ends.items())
    except OSError:
        return False
    except Exception:  # noqa: BLE001 (a damaged pickle may raise anything)
        return False


def _stored_ends(path: Path) -> Dict[str, int]:
    """The end of the stored data in each file."""
    with open(path, "rb") as file:
        metadata = _PassiveUnpickler(file).load()
    ends: Dict[str, int] = {}
    for info in metadata.storage_data.values():
        name, begin, length = _stored_extent(info)
        ends[name] = max(ends.get(name, 0), begin + length)
    return ends


def _stored_extent(info: Any) -> Tuple[str, int, int]:
    return str(info.relative_path), int(info.offset), int(info.length)


_WHOLE: Dict[str, Callable[[Path], bool]] = {
    ".pt": _is_whole_torch,
    ".pth": _is_whole_torch,
    ".bin": _is_whole_torch,
    ".ckpt": _is_whole_torch,
    ".safetensors": _is_whole_safetensors,
    ".keras": _is_whole_zip,
    ".npz": _is_whole_zip,
    ".h5": _is_whole_hdf5,
    ".weights.h5": _is_whole_hdf5,
}
