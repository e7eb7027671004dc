"""Files of registered models: planning, copying, and their read-only location.

A version is stored at ``.models/<project>/<version id>`` on the volume of the projects' own folders: no project is
named ``.models``, so that jobs get it only read-only. It is written as a draft next to it and renamed when complete.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from core.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    TrainmasterError,
)
from core.storage import volumes
from core.storage.tree import LeavesVolume, Tree

FOLDER: Final = ".models"
_DRAFTS: Final = ".drafts"
# The platform's folder in every output: logs and spooled reports.
_OWN: Final = ".trainmaster"
# Marker files of the platform in pinned checkpoints; no part of the model.
_MARKS: Final = frozenset({".kept"})
FILE_LIMIT: Final = 10_000
CHUNK_BYTES: Final = 8 * 2**20  # bytes


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """``path``: in the version. ``source``: below the job's output."""

    path: str
    source: str
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A completely copied file of a version. ``sha256``: in hexadecimal digits."""

    path: str
    size_bytes: int
    sha256: str


class SourceChanged(Conflict):
    """A source file was written to or deleted during the copy."""


def place_of(project: str, version_id: str) -> str:
    """The path of a version on the volume of the projects' own folders."""
    return f"{FOLDER}/{project}/{version_id}"


def is_place_of(path: str, projects: Collection[str]) -> bool:
    """Whether ``path`` is at or below a version of one of ``projects``."""
    names = path.split("/")
    return len(names) >= 3 and names[0] == FOLDER and names[1] in projects and names[2] != _DRAFTS


# --- planning --------------------------------------------------------------------------------------------------------


def plan_files(output: Tree, parts: Iterable[str], *, limit_bytes: int) -> list[PlannedFile]:
    """All files of ``parts``, which are one folder or some files of the job's ``output``, by path, without reading
    them.

    A single folder is left out of the paths; so are the platform's own files. A link to a file inside the output is
    copied as that file.

    Raises:
        NotFound: a part is missing.
        InvalidRequest: nothing to register; a link that leads out, or to a folder; a pipe, a socket; too many files; a
            name that is not UTF-8.
        PayloadTooLarge: more than ``limit_bytes``.
    """
    found: list[PlannedFile] = []
    total = 0
    for part in parts:
        for planned in _files_of(output, part.strip("/") if part != "." else ""):
            found.append(planned)
            total += planned.size_bytes
            if len(found) > FILE_LIMIT:
                raise InvalidRequest(
                    f"{part or 'The output'} has more than {FILE_LIMIT:,} files; pack them, or name a folder in it.",
                    field="path",
                )
            if total > limit_bytes:
                raise PayloadTooLarge(
                    f"{part or 'The output'} has more than {limit_bytes:,} bytes, the most that a version may have "
                    "(TRAINMASTER_MODEL_LIMIT_BYTES); name a smaller folder.",
                    field="path",
                )
    if not found:
        raise InvalidRequest(
            f"{', '.join(parts) or 'The output'} is empty: there is nothing to register.", field="path"
        )
    return sorted(found, key=lambda planned: planned.path)


def _files_of(output: Tree, part: str) -> Iterator[PlannedFile]:
    entry = _stat_of(output, part)
    if not entry[0]:
        yield PlannedFile(part.rpartition("/")[2], part, entry[1], entry[2])
        return
    waiting = [part]
    while waiting:
        folder = waiting.pop()
        with output.open_folder(folder) as fd:
            names = sorted(os.listdir(fd))  # noqa: PTH208 (a descriptor, not a path)
            kinds = {name: os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode for name in names}
        for name, mode in kinds.items():
            path = f"{folder}/{name}" if folder else name
            if path == _OWN or name in _MARKS:
                continue
            if name.encode("utf-8", "ignore").decode() != name:
                raise InvalidRequest(
                    f"A name in {folder or 'the output'} is not UTF-8: {name!r}; rename it.", field="path"
                )
            is_dir, size, mtime_ns = _stat_of(output, path)
            if is_dir and stat.S_ISLNK(mode):
                raise InvalidRequest(
                    f"{path} is a link to a folder; have the files themselves in what is registered.", field="path"
                )
            if is_dir:
                waiting.append(path)
                continue
            below = path.removeprefix(f"{part}/") if part else path
            yield PlannedFile(below, path, size, mtime_ns)


def _stat_of(output: Tree, path: str) -> tuple[bool, int, int]:
    """(is a folder, bytes, mtime) of ``path``, following links inside the output."""
    try:
        entry = output.stat(path)
        if not entry.is_dir:
            os.close(output.open_file(path))  # a pipe, or unreadable: reported now, not after an hour of copying
    except LeavesVolume as error:
        raise InvalidRequest(
            f"{path} is a link that leads out of the job's output; copy the file itself there.", field="path"
        ) from error
    except NotFound:
        if output.is_link(path):
            raise InvalidRequest(
                f"{path} is a link to nothing; remove it, or put the file there.", field="path"
            ) from None
        raise
    return entry.is_dir, entry.size_bytes, entry.mtime_ns


# --- copying ---------------------------------------------------------------------------------------------------------


class VersionDraft:
    """A version being copied, as written by the holder of the lease ``token``.

    Each holder writes to a folder of its own name, which it takes over from its predecessor: a holder that has lost the
    lease without noticing writes elsewhere.
    """

    def __init__(self, volume: Tree, place: str, token: int) -> None:
        """``place``: the version's final path, from :func:`place_of`."""
        self._volume = volume
        above, _, self._id = place.rpartition("/")
        self._drafts = f"{above}/{_DRAFTS}"
        self._place = place
        self._own = f"{self._drafts}/{self._id}.{token}"

    def take_over(self) -> None:
        """Begin, or continue with the files that an earlier holder has copied."""
        self._volume.make_folder(self._drafts, mode=0o755)
        if self._volume.exists(self._place) or self._volume.exists(self._own):
            return
        earlier = self._left()
        if earlier:
            with self._volume.open_folder(self._drafts) as fd:
                os.rename(earlier[-1], self._own.rpartition("/")[2], src_dir_fd=fd, dst_dir_fd=fd)
            return
        self._volume.make_folder(self._own, mode=0o755)

    def demand_room(self, size_bytes: int) -> None:
        """Raises ``InsufficientStorage``."""
        demand_room(self._volume, size_bytes)

    def has(self, file: KnownFile) -> bool:
        """Whether this copied file still exists."""
        for base in (self._own, self._place):
            try:
                if self._volume.stat(f"{base}/{file.path}").size_bytes == file.size_bytes:
                    return True
            except NotFound:
                continue
        return False

    def copy(self, output: Tree, planned: PlannedFile, on_bytes: Callable[[int], None]) -> str:
        """Copy one file completely and fsync it; returns its SHA-256. ``on_bytes`` is called for each chunk, and may
        raise.

        Raises:
            SourceChanged: it differs from the plan, or changes meanwhile.
        """
        try:
            source = output.open_file(planned.source)
        except NotFound as error:
            raise SourceChanged(f"{planned.source} was deleted before it was copied; register it again.") from error
        try:
            _demand_same(source, planned)
            digest = hashlib.sha256()
            with self._volume.new_file(f"{self._own}/{planned.path}") as target:
                at = 0
                while data := os.pread(source, CHUNK_BYTES, at):
                    at += len(data)
                    digest.update(data)
                    _write_all(target, data)
                    on_bytes(len(data))
                _demand_same(source, planned)
                if at != planned.size_bytes:
                    raise _changed(planned)
                os.fsync(target)
        finally:
            os.close(source)
        return digest.hexdigest()

    def publish(self, files: Collection[KnownFile]) -> None:
        """Move the draft to its final path, which is immutable from then on. Idempotent after a kill.

        Raises:
            Conflict: a file is missing, or of another size.
        """
        if not self._volume.exists(self._place):
            self._demand_exactly(files)
            _seal(self._volume, self._own)
            above, _, name = self._place.rpartition("/")
            with self._volume.open_folder(self._drafts) as drafts, self._volume.open_folder(above) as folder:
                os.rename(self._own.rpartition("/")[2], name, src_dir_fd=drafts, dst_dir_fd=folder)
                os.fsync(folder)
        with self._volume.open_folder(self._place) as top:
            os.fchmod(top, 0o555)  # last: a read-only folder cannot be moved either
        self._drop_drafts()

    def remove(self) -> None:
        """Remove all files of the version. Idempotent."""
        self._drop_drafts()
        _remove(self._volume, self._place)

    def _drop_drafts(self) -> None:
        for name in self._left():
            _remove(self._volume, f"{self._drafts}/{name}")

    def _left(self) -> list[str]:
        """Drafts of this version, the newest holder's last."""
        try:
            names = [name for name in self._volume.names(self._drafts) if name.startswith(f"{self._id}.")]
        except NotFound:
            return []
        return sorted(names, key=lambda name: int(name.rpartition(".")[2]))

    def _demand_exactly(self, files: Collection[KnownFile]) -> None:
        wanted = {file.path: file.size_bytes for file in files}
        there = {planned.path: planned.size_bytes for planned in _files_of(self._volume, self._own)}
        for leftover in there.keys() - wanted.keys():  # a partial file of a killed copy
            self._volume.delete(f"{self._own}/{leftover}")
            del there[leftover]
        if there != wanted:
            wrong = min(set(wanted.items()) ^ set(there.items()))[0]
            raise Conflict(f"The copy of {wrong} is not what was written; register it again.")


def demand_room(volume: Tree, size_bytes: int) -> None:
    """Raises ``InsufficientStorage`` if the volume lacks the space."""
    volumes.demand_room(
        volume, size_bytes, "The registry's volume", "delete unused versions, or ask an admin for space."
    )


def _demand_same(fd: int, planned: PlannedFile) -> None:
    status = os.fstat(fd)
    if (status.st_size, status.st_mtime_ns) != (planned.size_bytes, planned.mtime_ns):
        raise _changed(planned)


def _changed(planned: PlannedFile) -> SourceChanged:
    return SourceChanged(f"{planned.source} was written to while it was registered; register it again when it is done.")


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _seal(volume: Tree, base: str) -> None:
    """Make files and folders below ``base`` read-only, and fsync them; ``base`` itself can still be moved."""
    with volume.open_folder(base) as top:
        for at, _, names, folder in os.fwalk(".", topdown=False, dir_fd=top, follow_symlinks=False):
            for name in names:
                os.chmod(name, 0o444, dir_fd=folder)
            os.fsync(folder)
            if at != ".":
                os.fchmod(folder, 0o555)


def _remove(volume: Tree, base: str) -> None:
    try:
        with volume.open_folder(base) as top:
            os.fchmod(top, 0o755)
            for _, folders, _, folder in os.fwalk(".", dir_fd=top, follow_symlinks=False):
                for name in folders:
                    os.chmod(name, 0o755, dir_fd=folder)  # noqa: S103 (as all folders of the volume)
    except NotFound:
        return
    except TrainmasterError:
        raise
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
    volume.delete(base)


# --- digest and format ------------------------------------------------------------------------------------------------


def digest_of(files: Iterable[KnownFile]) -> str:
    """One digest over names, sizes and contents: ``sha256:<hex>`` over the lines of sha256sum."""
    lines = sorted(f"{file.sha256}  {file.path}\n" for file in files)
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


_BY_NAME: Final = {
    "saved_model.pb": "savedmodel",
    "MLmodel": "mlflow",
    ".metadata": "dcp",
    "model.onnx": "onnx",
}
_BY_SUFFIX: Final = {
    ".skops": "skops",
    ".joblib": "sklearn",
    ".pkl": "sklearn",
    ".pickle": "sklearn",
    ".safetensors": "safetensors",
    ".keras": "keras",
    ".h5": "keras",
    ".ubj": "xgboost",
    ".bst": "xgboost",
    ".xgb": "xgboost",
    ".onnx": "onnx",
    ".mar": "torchserve",
    ".pt2": "torch.export",
    ".ts": "torchscript",
    ".pt": "torch",
    ".pth": "torch",
    ".ckpt": "torch",
    ".npz": "numpy",
}


# Every TorchScript archive has this entry, and no file of torch.save does. Entry names are at a zip file's end.
_OF_PROGRAMS: Final = b"/constants.pkl"
_TAIL: Final = 2**20  # bytes; a program of ten thousand tensors has its names in fewer


def format_of_files(tree: Tree, files: Collection[PlannedFile]) -> str:
    """The format by names; for torch's files, which share suffixes, by content: a program or saved values."""
    found = _format_of(file.path for file in files)
    if found != "torch":
        return found
    ends = tuple(suffix for suffix, form in _BY_SUFFIX.items() if form == "torch")
    first = next(file for file in files if "/" not in file.path and file.path.endswith(ends))
    try:
        with os.fdopen(tree.open_file(first.source), "rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL))
            return "torchscript" if _OF_PROGRAMS in stream.read(_TAIL) else found
    except (TrainmasterError, OSError):
        return found  # the copy reports the error


def _format_of(paths: Iterable[str]) -> str:
    """The format by names: ``savedmodel``, ``sklearn``, ``torch``…; empty: unknown."""
    top = {path for path in paths if "/" not in path}
    for name, form in _BY_NAME.items():
        if name in top:
            return form
    if "config.json" in top and any(name.endswith((".safetensors", ".bin")) for name in top):
        return "huggingface"
    return next((form for suffix, form in _BY_SUFFIX.items() if any(name.endswith(suffix) for name in top)), "")
