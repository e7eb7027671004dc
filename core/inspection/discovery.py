"""Checkpoint discovery: checkpoints of any format in a job's output, and whether each is complete.

Judged by the traces that only a finished writer leaves (a zip file's directory at its end, the file that is written
last); a
few bytes are read. ``core.storage.checkpoints`` answers the narrower question which checkpoint a job resumes from.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import nlargest
from typing import Final

from core.domain.errors import NotFound, TrainmasterError
from core.storage.checkpoints import FOLDER, MARKER, step_in
from core.storage.tree import Tree

# Marker file in a pinned folder: the training library, which removes old checkpoints itself, leaves it alone.
PINNED_MARKER: Final = ".kept"
_FORMATS: Final = {
    ".pt": "torch",
    ".pth": "torch",
    ".ckpt": "torch",
    ".bin": "torch",
    ".safetensors": "safetensors",
    ".npz": "numpy",
    ".npy": "numpy",
    ".h5": "keras",
    ".keras": "keras",
    ".ubj": "xgboost",
    ".json": "xgboost",
    ".model": "xgboost",
}
# Outside the folder `checkpoints` only unmistakable formats.
_SURE: Final = frozenset({".pt", ".pth", ".ckpt", ".safetensors", ".keras", ".ubj"})
_SHARD: Final = re.compile(r"^(?P<prefix>.+)\.data-\d{5}-of-(?P<count>\d{5})$")
_STAGED: Final = re.compile(r"^\.(step-\d{1,18})(?:\.a\d{1,9})?\.partial$")
_UNFINISHED: Final = (".tmp", ".part", ".partial", ".incomplete")
_HUGGINGFACE: Final = frozenset(
    {"config.json", "adapter_config.json", "trainer_state.json", "model.safetensors.index.json"}
)
ENTRY_LIMIT: Final = 20_000  # of one folder; the newest
_SIZE_FILES: Final = 10_000
_HEADER_LIMIT: Final = 100 * 2**20
_TABLE_END: Final = (0xDB4775248B80FB57).to_bytes(8, "little")
_HDF5: Final = b"\x89HDF\r\n\x1a\n"
_INCOMPLETE: Final = "It is still being written, or its writer was stopped."


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """``path``: a file, a folder, or the prefix of TensorFlow's files, relative to the output. ``parts``: the files and
    folders it consists of. ``problem``: why it is incomplete; empty if complete.
    """

    path: str
    format: str
    step: int | None
    size_bytes: int
    modified_at: datetime
    is_dir: bool
    parts: tuple[str, ...]
    problem: str = ""

    @property
    def is_complete(self) -> bool:
        return not self.problem


def find_checkpoints(tree: Tree) -> list[CheckpointFiles]:
    """All checkpoints in the output ``tree``, complete or not, unordered. Files that vanish meanwhile are left out."""
    return [*_in_folder(tree, FOLDER, is_own=True), *_in_folder(tree, "", is_own=False)]


def checkpoint_at(tree: Tree, path: str) -> CheckpointFiles:
    """The checkpoint at ``path``. Raises ``NotFound`` if there is none; otherwise like ``Tree``."""
    parent, _, name = path.strip("/").rpartition("/")
    found = next(
        (
            candidate
            for candidate in _in_folder(tree, parent, is_own=True, only=name)
            if candidate.path == path.strip("/")
        ),
        None,
    )
    if found is None:
        tree.stat(path)  # raises the most precise error for the path
        raise NotFound(f"{path} is no checkpoint of a known format.")
    return found


def signature(tree: Tree, landed: CheckpointFiles) -> str:
    """A fingerprint that changes when a file of the checkpoint is replaced or written to."""
    digest = hashlib.blake2b(digest_size=20)
    for part in landed.parts:
        for path, status in _files(tree, part):
            about = f"{path}\0{status.st_dev}\0{status.st_ino}\0{status.st_size}\0{status.st_mtime_ns}\0"
            digest.update(about.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def files_of(tree: Tree, landed: CheckpointFiles) -> list[tuple[str, os.stat_result]]:
    """Every regular file of the checkpoint by its path, in order; without links. Raises like ``Tree``."""
    return [entry for part in landed.parts for entry in _files(tree, part)]


def _files(tree: Tree, part: str) -> Iterator[tuple[str, os.stat_result]]:
    if not tree.stat(part).is_dir:
        fd = tree.open_file(part)
        try:
            yield part, os.fstat(fd)
        finally:
            os.close(fd)
        return
    found: list[tuple[str, os.stat_result]] = []
    with tree.open_folder(part) as top:
        for at, _, names, folder in os.fwalk(".", dir_fd=top, follow_symlinks=False):
            for name in names:
                try:
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    found.append((os.path.normpath(f"{part}/{at}/{name}"), status))
            if len(found) > _SIZE_FILES:
                break
    yield from sorted(found, key=lambda entry: entry[0])


def _in_folder(tree: Tree, folder: str, *, is_own: bool, only: str | None = None) -> Iterator[CheckpointFiles]:
    """``is_own``: the folder holds checkpoints alone. ``only``: prefix of the names."""
    try:
        with tree.open_folder(folder) as fd:
            found = nlargest(ENTRY_LIMIT, _entries(fd, only or ""), key=lambda entry: entry[1].st_mtime_ns)
            look = _FolderScan(tree, folder, fd, dict(found), is_own=is_own)
            yield from look.all()
    except NotFound:
        return


def _entries(fd: int, begin: str) -> Iterator[tuple[str, os.stat_result]]:
    """The entries of a folder whose names begin with ``begin``."""
    with os.scandir(fd) as scan:
        for entry in scan:
            if entry.name.startswith(begin):
                try:
                    yield entry.name, entry.stat(follow_symlinks=False)
                except OSError:
                    continue


class _FolderScan:
    """The scan of one folder."""

    def __init__(self, tree: Tree, folder: str, fd: int, names: dict[str, os.stat_result], *, is_own: bool) -> None:
        self._tree = tree
        self._folder = folder
        self._fd = fd
        self._names = names
        self._is_own = is_own

    def all(self) -> Iterator[CheckpointFiles]:
        tables = dict(self._tensorflow())
        taken = {part for parts in tables.values() for part in parts}
        for prefix, parts in tables.items():
            yield self._table(prefix, parts)
        for name, status in self._names.items():
            if name in taken or name.encode("utf-8", "ignore").decode() != name:
                continue
            try:
                found = self._detect_checkpoint(name, status)
            except (TrainmasterError, OSError):
                continue  # vanished or changing meanwhile
            if found is not None:
                yield found

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}" if self._folder else name

    def _detect_checkpoint(self, name: str, status: os.stat_result) -> CheckpointFiles | None:
        if stat.S_ISDIR(status.st_mode):
            detected = self._detect_folder_format(name)
        elif stat.S_ISREG(status.st_mode):
            detected = self._detect_file_format(name, status.st_size)
        else:
            return None
        if detected is None:
            return None
        form, problem = detected
        is_dir = stat.S_ISDIR(status.st_mode)
        path = self._path(name)
        size, modified_s = status.st_size, status.st_mtime
        if is_dir:
            files = list(_files(self._tree, path))
            size = sum(found.st_size for _, found in files)
            modified_s = max(
                (found.st_mtime for at, found in files if not at.endswith(f"/{PINNED_MARKER}")), default=modified_s
            )
        staged = _STAGED.match(name)
        step = step_in(staged[1] if staged else _bare(name))
        at = datetime.fromtimestamp(modified_s, UTC)
        return CheckpointFiles(path, form, step, size, at, is_dir, (path,), problem)

    def _detect_folder_format(self, name: str) -> tuple[str, str] | None:
        if name.startswith("."):
            return ("trainmaster", _INCOMPLETE) if _STAGED.match(name) else None
        contents = set(self._tree.names(self._path(name)))
        if MARKER in contents:
            return _form_of(contents), ""
        if ".metadata" in contents:
            return "dcp", ""
        if any(file.endswith(".distcp") for file in contents):
            return "dcp", f"{_INCOMPLETE} Its .metadata, which comes last, is not there."
        if "saved_model.pb" in contents:
            is_whole = self._tree.exists(self._path(f"{name}/variables/variables.index"))
            return "savedmodel", "" if is_whole else "Its variables are not there (yet)."
        if contents & _HUGGINGFACE and any(_suffix(file) in _FORMATS for file in contents):
            is_late = name.startswith("checkpoint-") and "trainer_state.json" not in contents
            return (
                "huggingface",
                f"{_INCOMPLETE} Its trainer_state.json, which comes last, is not there." if is_late else "",
            )
        if self._is_own:
            return _form_of(contents), f"It has no {MARKER} file, which its writer makes last."
        return None

    def _detect_file_format(self, name: str, size: int) -> tuple[str, str] | None:
        if name.startswith(".") or name.endswith(_UNFINISHED):
            bare = _bare(name)
            form = _FORMATS.get(_suffix(bare))
            return (form, _INCOMPLETE) if form is not None and self._is_own else None
        suffix = _suffix(name)
        form = _FORMATS.get(suffix)
        if form is None or not (self._is_own or suffix in _SURE):
            return None
        if size == 0:
            return form, "It is empty."
        fd = self._tree.open_file(self._path(name))
        try:
            return form, "" if _is_whole(fd, os.fstat(fd).st_size, suffix) else "It is cut short: its end is missing."
        finally:
            os.close(fd)

    def _tensorflow(self) -> Iterator[tuple[str, list[str]]]:
        """The prefixes of TensorFlow's checkpoints and the files of each."""
        found: dict[str, list[str]] = {}
        for name in self._names:
            match = _SHARD.match(name)
            if match:
                found.setdefault(match["prefix"], []).append(name)
        for prefix, shards in found.items():
            yield (
                prefix,
                [
                    *sorted(shards),
                    *(f"{prefix}{end}" for end in (".index", ".meta") if f"{prefix}{end}" in self._names),
                ],
            )

    def _table(self, prefix: str, parts: list[str]) -> CheckpointFiles:
        shards = [name for name in parts if _SHARD.match(name)]
        counts = {match["count"] for name in shards if (match := _SHARD.match(name))}
        problem = ""
        if f"{prefix}.index" not in parts:
            problem = f"{_INCOMPLETE} Its .index, which comes last, is not there."
        elif len(counts) != 1 or len(shards) != int(next(iter(counts))):
            problem = "Some of its .data files are missing."
        elif not self._ends_with(f"{prefix}.index", _TABLE_END):
            problem = "Its .index is cut short."
        statuses = [self._names[name] for name in parts]
        at = datetime.fromtimestamp(max(status.st_mtime for status in statuses), UTC)
        size = sum(status.st_size for status in statuses)
        paths = tuple(self._path(name) for name in parts)
        return CheckpointFiles(
            self._path(prefix), "tensorflow", step_in(prefix), size, at, is_dir=False, parts=paths, problem=problem
        )

    def _ends_with(self, name: str, end: bytes) -> bool:
        try:
            fd = self._tree.open_file(self._path(name))
        except TrainmasterError:
            return False
        try:
            size = os.fstat(fd).st_size
            return size >= len(end) and os.pread(fd, len(end), size - len(end)) == end
        finally:
            os.close(fd)


def _bare(name: str) -> str:
    """A name without a writer's temporary suffix."""
    bare = name.lstrip(".")
    for end in _UNFINISHED:
        bare = bare.removesuffix(end)
    return bare


def _form_of(contents: set[str]) -> str:
    if ".metadata" in contents or any(name.endswith(".distcp") for name in contents):
        return "dcp"
    if any(name.startswith("shard-") and name.endswith(".pt") for name in contents):
        return "shards"
    if "saved_model.pb" in contents:
        return "savedmodel"
    forms = {_FORMATS.get(_suffix(name)) for name in contents if not name.endswith(".json")} - {None}
    return "trainmaster" if len(forms) != 1 else str(next(iter(forms)))


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1]  # noqa: PTH122 (no Path per file)


def _is_whole(fd: int, size: int, suffix: str) -> bool:
    """Whether a file's end is intact; always true for formats without a recognizable end."""
    head = os.pread(fd, 64, 0)
    if head.startswith(b"PK\x03\x04"):
        tail_bytes = min(size, 22 + 2**16)
        tail = os.pread(fd, tail_bytes, size - tail_bytes)
        return tail[-22:-18] == b"PK\x05\x06" or b"PK\x05\x06" in tail
    if suffix in (".npz", ".keras"):
        return False
    if suffix == ".safetensors":
        length = int.from_bytes(head[:8], "little")
        return len(head) >= 8 and length <= _HEADER_LIMIT and size >= 8 + length and _is_as_long(fd, size, length)
    if head.startswith(_HDF5) and len(head) >= 48:
        # HDF5 File Format Specification, III.A: the end-of-file address.
        begin = {0: 40, 1: 44}.get(head[8], 28)
        return size >= int.from_bytes(head[begin : begin + 8], "little")
    return suffix != ".h5"


_QUICK_HEADER: Final = 4 * 2**20
_END: Final = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d{1,18}\s*,\s*(\d{1,18})\s*\]')


def _is_as_long(fd: int, size: int, header_bytes: int) -> bool:
    if header_bytes > _QUICK_HEADER:
        return True  # the inspection will tell
    header = os.pread(fd, header_bytes, 8)
    return size >= 8 + header_bytes + max((int(end) for end in _END.findall(header)), default=0)
