"""A code folder as one archive: the same content always gives the same bytes, and so the same digest."""

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
# Later files of a folder win over earlier ones, so `!data/` in ours takes back what git leaves out.
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
# The server's own default; it says no by itself when its limit is lower.
DEFAULT_LIMIT_BYTES: Final = 512 * 2**20
_LARGEST_SHOWN: Final = 5
_PREFIX: Final = "trainmaster-code-"
_SUFFIX: Final = ".tar.gz"
_LEFT_S: Final = 86_400.0
# A file is taken for incompressible when all of so many pieces of it are: by then chance plays no part.
_PIECES: Final = 16
_PIECE_BYTES: Final = 64 * 2**10
_INCOMPRESSIBLE: Final = 0.98  # of a piece's size is left

# Called with the bytes read so far and the bytes in all.
Progress: TypeAlias = Callable[[int, int], None]
# Called with the files that will be packed, before the first of them is read.
Listed: TypeAlias = Callable[[Sequence["FolderEntry"]], None]


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file, folder or link that goes into the archive. ``name`` is relative, with slashes."""

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
    """A finished archive in a temporary file, which ``remove`` (or leaving ``with``) deletes.

    ``skipped``: sockets, pipes and devices, which no archive can carry.
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
    """Pack ``folder`` without what is ignored into a ``.tar.gz``.

    Names are sorted; times, owners and all permissions but "executable" are left out: the same content gives the same
    digest on every machine. Links are kept as links when they stay inside the folder.

    Args:
        limit_bytes: of the packed archive; packing stops as soon as it is passed, and does not begin where files that
            no packing makes smaller pass it by themselves.

    Raises:
        UnfitFolder: not a readable folder, nothing left to pack, too large, or a link that leaves it.
    """
    folder = Path(folder)
    entries, skipped = list_folder(folder)
    files = [entry for entry in entries if not entry.is_folder]
    if not files:
        raise UnfitFolder(
            f"There is nothing to pack in {folder}: it is empty, or all of it is ignored "
            f"(by {', '.join(IGNORE_FILES)} or the defaults); take files back with a line like `!train.py` in {IGNORE_FILE}."
        )
    total = sum(entry.size for entry in entries)
    if listed is not None:
        listed(files)
    if total > limit_bytes and _incompressible_bytes(files) > limit_bytes:
        raise _too_large(folder, files, limit_bytes)
    _forget_old_archives()
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


def _forget_old_archives() -> None:
    """Remove what a packing left that was killed: a day old, which no upload is."""
    oldest = time.time() - _LEFT_S  # noqa: TID251 (compared with the file system's own clock)
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(OSError):  # another user's, or gone
            if path.stat().st_mtime < oldest:
                path.unlink()


def list_folder(folder: Path) -> tuple[list[FolderEntry], tuple[str, ...]]:
    """What of ``folder`` goes into the archive, sorted by name, and the special files that cannot.

    Raises:
        UnfitFolder: not a readable folder, or a link that leaves it.
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UnfitFolder(f"The code folder {folder} {what}: name one that is there.")
    entries: list[FolderEntry] = []
    skipped: list[str] = []
    for entry in _walk(folder.resolve(), "", [_rules("", DEFAULT_IGNORES)]):
        if entry.link is not None or stat.S_ISREG(entry.mode) or entry.is_folder:
            entries.append(entry)
        else:
            skipped.append(entry.name)
    # Part by part, so that a folder stands right before what is in it.
    entries.sort(key=lambda entry: entry.name.split("/"))
    return entries, tuple(sorted(skipped))


# --- what is ignored ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rules:
    """The ignore lines of one folder, which hold below it."""

    base: str
    spec: Any

    def decide(self, name: str, *, is_folder: bool) -> bool | None:
        """Whether ``name`` is ignored; ``None`` when no line speaks of it."""
        relative = name[len(self.base) :] + ("/" if is_folder else "")
        decided: bool | None = self.spec.check_file(relative).include
        return decided


def _rules(base: str, lines: Sequence[str]) -> _Rules:
    from pathspec import GitIgnoreSpec

    return _Rules(base, GitIgnoreSpec.from_lines(lines))


def _is_ignored(name: str, rules: Sequence[_Rules], *, is_folder: bool) -> bool:
    for level in reversed(rules):  # the nearest folder's word counts, as in git
        decided = level.decide(name, is_folder=is_folder)
        if decided is not None:
            return decided
    return False


def _own_rules(folder: Path, base: str) -> list[_Rules]:
    found = []
    for name in IGNORE_FILES:
        file = folder / name
        try:
            lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        except (OSError, UnicodeDecodeError) as error:
            raise UnfitFolder(f"The ignore file {file} cannot be read; it must be UTF-8 text.") from error
        if lines:
            try:
                found.append(_rules(base, lines))
            except ValueError as error:
                raise UnfitFolder(f"The ignore file {file} has a pattern that git does not know: {error}.") from error
    return found


# --- reading the folder ---------------------------------------------------------------------------------------------


def _walk(root: Path, base: str, rules: list[_Rules]) -> Iterator[FolderEntry]:
    folder = root / base
    rules = rules + _own_rules(folder, base)
    try:
        with os.scandir(folder) as scan:
            found = list(scan)
    except OSError as error:
        raise UnfitFolder(
            f"The folder {folder} cannot be read: {error.strerror}; ignore it in {IGNORE_FILE}."
        ) from error
    for item in found:
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
    """Whether a platform keeps its data here, whatever the folder is called: its key and tokens are nobody's code."""
    return (folder / "secret.key").is_file() and (folder / "run").is_dir()


def _link_inside(root: Path, name: str, path: Path) -> str:
    """The link's target, relative to the link.

    Raises:
        UnfitFolder: the target lies outside of ``root``.
    """
    target = Path(path.readlink())
    # Both as written and as resolved: a chain of links may leave by a later step, a ".." by a folder that is a link.
    lexical = Path(os.path.normpath(target if target.is_absolute() else path.parent / target))
    resolved = Path(os.path.realpath(path))
    if not (lexical.is_relative_to(root) and resolved.is_relative_to(root)):
        raise UnfitFolder(
            f"{name} is a link to {target}, outside of the folder; copy the file in, or ignore it in {IGNORE_FILE}."
        )
    return PurePosixPath(os.path.relpath(lexical, path.parent)).as_posix()


# --- writing the archive --------------------------------------------------------------------------------------------


class _Sink:
    """The archive's file: counts, hashes, and stops what grows too large."""

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


class _Watched:
    """A file that tells how far it has been read."""

    def __init__(self, file: IO[bytes], advance: Callable[[int], None]) -> None:
        self._file, self._advance, self._read = file, advance, 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._read += len(data)
        self._advance(self._read)
        return data


def _add(tar: tarfile.TarFile, entry: FolderEntry, advance: Callable[[int], None]) -> int:
    """Append one entry; the bytes of its content."""
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
        tar.addfile(info, _Watched(file, advance))
    return info.size


def _incompressible_bytes(files: Sequence[FolderEntry]) -> int:
    """How much of the content stays as large as it is, judged by pieces of the files that matter."""
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
        return False  # packing tells
    return True


def largest_of(files: Sequence[FolderEntry]) -> str:
    """The largest files with their sizes, in words."""
    largest = sorted(files, key=lambda entry: (-entry.size, entry.name))[:_LARGEST_SHOWN]
    return "; ".join(f"{entry.name} ({format_size(entry.size)})" for entry in largest)


def _too_large(folder: Path, files: Sequence[FolderEntry], limit_bytes: int) -> UnfitFolder:
    return UnfitFolder(
        f"The code in {folder} packs to more than {format_size(limit_bytes)}; "
        f"list what the training does not need in {IGNORE_FILE}, and put data on a volume. The largest files: {largest_of(files)}."
    )
