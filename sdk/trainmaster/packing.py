"""Reproducible archives of code folders: the same content always gives the same bytes and the same digest."""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, Self, TypeAlias

from trainmaster.errors import UnfitFolder
from trainmaster.sizes import format_size

IGNORE_FILE: Final = ".trainmasterignore"
# Later files override earlier ones, so `!data/` in .trainmasterignore includes a folder that git ignores.
IGNORE_FILES: Final = (".gitignore", IGNORE_FILE)
DEFAULT_IGNORES: Final = (
    ".git/",
    ".hg/",
    ".svn/",
    ".venv/",
    "venv/",
    "__pycache__/",
    "*.pyc",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".ipynb_checkpoints/",
    ".tox/",
    ".nox/",
    ".idea/",
    ".vscode/",
    ".DS_Store",
    "node_modules/",
    "*.egg-info/",
    ".trainmaster/",
    ".env",
)
# The server's default; a server with a lower limit rejects the upload itself.
DEFAULT_LIMIT_BYTES: Final = 512 * 2**20
_LARGEST_SHOWN: Final = 5
_PREFIX: Final = "trainmaster-code-"
_SUFFIX: Final = ".tar.gz"
_STALE_S: Final = 86_400.0
# A file counts as incompressible if all of so many sampled pieces are: enough to rule out chance.
_PIECES: Final = 16
_PIECE_BYTES: Final = 64 * 2**10
_INCOMPRESSIBLE: Final = 0.98  # minimum ratio of compressed to original size

# Called with the bytes read so far and the total.
Progress: TypeAlias = Callable[[int, int], None]
# Called with the files to pack, before the first of them is read.
Listed: TypeAlias = Callable[[Sequence["FolderEntry"]], None]


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file, folder or link of the archive. ``name`` is relative, with slashes."""

    name: str
    path: Path
    mode: int
    size: int = 0
    link: str | None = None

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)


@dataclass(frozen=True, slots=True)
class PackedFolder:
    """A finished archive in a temporary file, which ``remove`` (or the end of ``with``) deletes.

    ``skipped``: sockets, pipes and devices, which cannot be archived.
    """

    path: Path
    digest: str
    size_bytes: int
    content_bytes: int
    file_count: int
    skipped: tuple[str, ...] = field(default=())

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def pack_folder(
    folder: Path | str,
    *,
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
    progress: Progress | None = None,
    listed: Listed | None = None,
) -> PackedFolder:
    """Pack ``folder``, without ignored files, into a ``.tar.gz``.

    Names are sorted; times, owners and all permissions except "executable" are left out: the same content gives the
    same digest on every machine. Links are stored as links; their targets must be inside the folder.

    Args:
        limit_bytes: maximum size of the archive. Packing stops when it is exceeded, and does not start if the
            incompressible files alone exceed it.

    Raises:
        UnfitFolder: not a readable folder, nothing to pack, too large, or a link to a file outside of it.
    """
    folder = Path(folder)
    entries, skipped = list_folder(folder)
    files = [entry for entry in entries if not entry.is_folder]
    if not files:
        raise UnfitFolder(
            f"There is nothing to pack in {folder}: it is empty, or all its files are ignored (by "
            f"{', '.join(IGNORE_FILES)} or the defaults); include files with a line like `!train.py` in {IGNORE_FILE}."
        )
    total = sum(entry.size for entry in entries)
    if listed is not None:
        listed(files)
    if total > limit_bytes and _incompressible_bytes(files) > limit_bytes:
        raise _too_large(folder, files, limit_bytes)
    _remove_stale_archives()
    descriptor, name = tempfile.mkstemp(prefix=_PREFIX, suffix=_SUFFIX)
    target = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as raw:
            sink = _Sink(raw, limit_bytes, lambda: _too_large(folder, files, limit_bytes))
            _write_archive(sink, entries, total, progress)
        return PackedFolder(
            path=target,
            digest=f"sha256:{sink.hash.hexdigest()}",
            size_bytes=sink.size,
            content_bytes=total,
            file_count=len(files),
            skipped=skipped,
        )
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _remove_stale_archives() -> None:
    """Remove archives of killed processes: those older than a day, longer than any upload takes."""
    oldest = time.time() - _STALE_S  # noqa: TID251 (compared with the file system's clock)
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(OSError):  # another user's, or gone
            if path.stat().st_mtime < oldest:
                path.unlink()


def list_folder(folder: Path) -> tuple[list[FolderEntry], tuple[str, ...]]:
    """The entries of ``folder`` to archive, sorted by name, and the special files that cannot be archived.

    Raises:
        UnfitFolder: not a readable folder, or a link to a file outside of it.
    """
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise UnfitFolder(f"The code folder {folder} {problem}: name an existing folder.")
    entries: list[FolderEntry] = []
    skipped: list[str] = []
    for entry in _walk(folder.resolve(), "", [_rules("", DEFAULT_IGNORES)]):
        if entry.link is not None or stat.S_ISREG(entry.mode) or entry.is_folder:
            entries.append(entry)
        else:
            skipped.append(entry.name)
    # By path components, so that a folder directly precedes its contents.
    entries.sort(key=lambda entry: entry.name.split("/"))
    return entries, tuple(sorted(skipped))


# --- ignore rules ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _IgnoreRules:
    """The ignore rules of one folder, which apply to it and its subfolders."""

    base: str
    spec: Any

    def match(self, name: str, *, is_folder: bool) -> bool | None:
        """Whether ``name`` is ignored; ``None`` if no rule matches."""
        relative = name[len(self.base) :] + ("/" if is_folder else "")
        is_ignored: bool | None = self.spec.check_file(relative).include
        return is_ignored


def _rules(base: str, lines: Sequence[str]) -> _IgnoreRules:
    from pathspec import GitIgnoreSpec

    return _IgnoreRules(base, GitIgnoreSpec.from_lines(lines))


def _is_ignored(name: str, rules: Sequence[_IgnoreRules], *, is_folder: bool) -> bool:
    for level in reversed(rules):  # the rules of the nearest folder take precedence, as in git
        is_ignored = level.match(name, is_folder=is_folder)
        if is_ignored is not None:
            return is_ignored
    return False


def _own_rules(folder: Path, base: str) -> list[_IgnoreRules]:
    rules = []
    for name in IGNORE_FILES:
        file = folder / name
        try:
            lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        except (OSError, UnicodeDecodeError) as error:
            raise UnfitFolder(f"The ignore file {file} cannot be read; it must be UTF-8 text.") from error
        if lines:
            try:
                rules.append(_rules(base, lines))
            except ValueError as error:
                raise UnfitFolder(f"The ignore file {file} has an invalid pattern: {error}.") from error
    return rules


# --- reading the folder ---------------------------------------------------------------------------------------------


def _walk(root: Path, base: str, rules: list[_IgnoreRules]) -> Iterator[FolderEntry]:
    folder = root / base
    rules = rules + _own_rules(folder, base)
    try:
        with os.scandir(folder) as scan:
            entries = list(scan)
    except OSError as error:
        raise UnfitFolder(
            f"The folder {folder} cannot be read: {error.strerror}; ignore it in {IGNORE_FILE}."
        ) from error
    for item in entries:
        name = base + item.name
        is_folder = item.is_dir(follow_symlinks=False)
        if is_folder and _is_platform_home(Path(item.path)):
            continue
        if _is_ignored(name, rules, is_folder=is_folder):
            continue
        path = Path(item.path)
        if item.is_symlink():
            yield FolderEntry(name, path, stat.S_IFLNK, link=_link_inside(root, name, path))
            continue
        status = item.stat(follow_symlinks=False)
        is_file = stat.S_ISREG(status.st_mode)
        yield FolderEntry(name, path, status.st_mode, size=status.st_size if is_file else 0)
        if is_folder:
            yield from _walk(root, name + "/", rules)


def _is_platform_home(folder: Path) -> bool:
    """Whether ``folder`` is a platform's data folder, which holds its key and tokens and is never code."""
    return (folder / "secret.key").is_file() and (folder / "run").is_dir()


def _link_inside(root: Path, name: str, path: Path) -> str:
    """The link's target, relative to the link.

    Raises:
        UnfitFolder: the target is outside of ``root``.
    """
    target = Path(path.readlink())
    # Both as written and resolved: a later link of a chain may leave the folder, or a ".." after a linked folder.
    lexical = Path(os.path.normpath(target if target.is_absolute() else path.parent / target))
    resolved = Path(os.path.realpath(path))
    if not (lexical.is_relative_to(root) and resolved.is_relative_to(root)):
        raise UnfitFolder(
            f"{name} is a link to {target}, outside of the folder; copy the file, or ignore the link in {IGNORE_FILE}."
        )
    return PurePosixPath(os.path.relpath(lexical, path.parent)).as_posix()


# --- writing the archive --------------------------------------------------------------------------------------------


class _Sink:
    """The archive's file: counts and hashes the bytes, and enforces the size limit."""

    def __init__(self, raw: IO[bytes], limit: int, too_large: Callable[[], UnfitFolder]) -> None:
        self.hash = hashlib.sha256()
        self.size = 0
        self._raw, self._limit, self._too_large = raw, limit, too_large

    def write(self, data: bytes) -> int:
        self.size += len(data)
        if self.size > self._limit:
            raise self._too_large()
        self.hash.update(data)
        return self._raw.write(data)

    def flush(self) -> None:
        self._raw.flush()


def _write_archive(sink: _Sink, entries: Sequence[FolderEntry], total: int, progress: Progress | None) -> None:
    done = 0
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=sink, compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for entry in entries:
            before = done

            def advance(read: int, before: int = before) -> None:
                if progress is not None:
                    progress(before + read, total)

            try:
                done += _add(tar, entry, advance)
            except OSError as error:
                raise UnfitFolder(
                    f"{entry.name} cannot be packed: {error.strerror or error}; ignore it in {IGNORE_FILE}."
                ) from error
            advance(done - before)


class _ProgressReader:
    """A file that reports the bytes read so far."""

    def __init__(self, file: IO[bytes], advance: Callable[[int], None]) -> None:
        self._file, self._advance, self._read = file, advance, 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._read += len(data)
        self._advance(self._read)
        return data


def _add(tar: tarfile.TarFile, entry: FolderEntry, advance: Callable[[int], None]) -> int:
    """Append one entry; returns the size of its content in bytes."""
    info = tarfile.TarInfo(entry.name)
    info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
    if entry.link is not None:
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.link, 0o777
        tar.addfile(info)
        return 0
    if entry.is_folder:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(info)
        return 0
    info.mode = 0o755 if entry.mode & stat.S_IXUSR else 0o644
    with entry.path.open("rb") as file:
        info.size = os.fstat(file.fileno()).st_size  # it may have grown since it was listed
        tar.addfile(info, _ProgressReader(file, advance))
    return info.size


def _incompressible_bytes(files: Sequence[FolderEntry]) -> int:
    """Total size of the incompressible files, judged by samples of the large ones."""
    return sum(entry.size for entry in files if entry.link is None and _is_incompressible(entry))


def _is_incompressible(entry: FolderEntry) -> bool:
    if entry.size < _PIECES * _PIECE_BYTES:
        return False
    try:
        with entry.path.open("rb") as file:
            for piece in range(_PIECES):
                file.seek((entry.size - _PIECE_BYTES) * piece // (_PIECES - 1))
                data = file.read(_PIECE_BYTES)
                if len(zlib.compress(data, 1)) < _INCOMPRESSIBLE * len(data):
                    return False
    except OSError:
        return False  # packing reports the error
    return True


def largest_of(files: Sequence[FolderEntry]) -> str:
    """The largest files with their sizes, as text."""
    largest = sorted(files, key=lambda entry: (-entry.size, entry.name))[:_LARGEST_SHOWN]
    return "; ".join(f"{entry.name} ({format_size(entry.size)})" for entry in largest)


def _too_large(folder: Path, files: Sequence[FolderEntry], limit_bytes: int) -> UnfitFolder:
    return UnfitFolder(
        f"The code in {folder} packs to more than {format_size(limit_bytes)}; "
        f"list files that the training does not need in {IGNORE_FILE}, and put data on a volume. The largest files: "
        f"{largest_of(files)}."
    )
