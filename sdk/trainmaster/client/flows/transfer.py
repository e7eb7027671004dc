"""Code archives up, files down; both go on where a broken one stopped."""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from trainmaster.client.calls import output as calls
from trainmaster.client.steps import Call, Flow, HttpResponse, RunBlocking
from trainmaster.errors import Conflict, LocalFileProblem, RangeNotSatisfiable, ServerFailure
from trainmaster.wire.jobs import ArchiveView

CHUNK_BYTES: Final = 4 * 2**20
# One request per window: a broken connection costs at most one window again.
WINDOW_BYTES: Final = 16 * 2**20
_VERSIONS_TRIED: Final = 3  # of a file that is written to while it is copied
_TOTAL: Final = re.compile(r"^bytes (?:\d+-\d+|\*)/(\d+)$")

# Called with the bytes done and the bytes in all.
Progress: TypeAlias = Callable[[int, int], None]
# Takes ``first`` and ``last``, both included, or nothing for all.
Read: TypeAlias = Callable[..., Call[HttpResponse]]


def _no_progress(done: int, total: int) -> None:
    pass


def upload_archive(archive: Path, *, digest: str, progress: Progress = _no_progress) -> Flow[ArchiveView]:
    """The complete archive on the server; nothing is sent of what it has already.

    Args:
        digest: ``sha256:…`` of the file.
    """
    size = yield RunBlocking(partial(_size_of, archive))
    view: ArchiveView = yield from calls.start_archive(digest, size)
    corrections = 0
    while not view.is_complete:
        offset = view.received_bytes
        progress(offset, size)
        chunk = yield RunBlocking(partial(_read_at, archive, offset))
        if not chunk:
            raise ServerFailure(
                f"The server holds {offset} bytes of the archive and still waits for more; upload it again."
            )
        try:
            view = yield from calls.append_archive(digest, offset, chunk)
            corrections = 0
        except Conflict:
            # A chunk arrived whose answer was lost, or somebody else uploads the same code: ask where it stands.
            corrections += 1
            if corrections > 3:
                raise
            view = yield from calls.get_archive(digest)
    progress(size, size)
    return view


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise LocalFileProblem(f"{file} cannot be read: {error.strerror}.") from error


def _read_at(file: Path, offset: int) -> bytes:
    try:
        with file.open("rb") as opened:
            opened.seek(offset)
            return opened.read(CHUNK_BYTES)
    except OSError as error:
        raise LocalFileProblem(f"{file} cannot be read: {error.strerror}.") from error


def read_file(job: str, file: str) -> Flow[bytes]:
    """The whole content of a file below the job's output, in memory."""
    answer = yield from calls.read_file_range(job, file)
    return answer.content


def download_file(job: str, file: str, target: Path | str, *, progress: Progress = _no_progress) -> Flow[Path]:
    """Copy a file from below the job's output to ``target`` (a folder: into it); its path.

    The bytes gather in a hidden ``.part`` file beside it, which a later call goes on with as long as the server's file
    is the same; ``target`` appears whole or not at all, and replaces what was there.
    """
    return (yield from copy_content(partial(calls.read_file_range, job, file), file, target, progress=progress))


def copy_content(read: Read, file: str, target: Path | str, *, progress: Progress = _no_progress) -> Flow[Path]:
    """The same for what ``read`` gives ranges of. ``file``: its name on the server."""
    target = Path(target)
    if target.is_dir():
        target /= file.rsplit("/", 1)[-1]
    for _ in range(_VERSIONS_TRIED):
        first = yield from _window(read, 0)
        part = target.with_name(f".{target.name}.{_version_of(first)}.part")
        is_whole = yield from _gather(read, first, part, progress)
        if is_whole:
            yield RunBlocking(partial(_rename, part, target))
            return target
        yield RunBlocking(partial(part.unlink, missing_ok=True))
    raise ServerFailure(f"{file} is being written to and changes while it is copied; copy it when it is finished.")


def _gather(read: Read, first: HttpResponse, part: Path, progress: Progress) -> Flow[bool]:
    """Whether all bytes are in ``part`` now; not when the server's file became another one meanwhile."""
    total, version = _total_of(first), _version_of(first)
    done = yield RunBlocking(partial(_begin, part, first.content, total))
    progress(done, total)
    while done < total:
        answer = yield from _window(read, done)
        if answer.status != 206 or _version_of(answer) != version or not answer.content:
            return False
        done = yield RunBlocking(partial(_write_at, part, done, answer.content))
        progress(done, total)
    return True


def _window(read: Read, first: int) -> Flow[HttpResponse]:
    try:
        return (yield from read(first=first, last=first + WINDOW_BYTES - 1))
    except RangeNotSatisfiable:
        if first:
            raise
    # An empty file has no range at all.
    return (yield from read())


def _total_of(answer: HttpResponse) -> int:
    match = _TOTAL.match(answer.headers.get("content-range", ""))
    return int(match[1]) if match and answer.status == 206 else len(answer.content)


def _version_of(answer: HttpResponse) -> str:
    """A short name for this very content of the server's file, as far as its headers tell."""
    marks = (answer.headers.get("etag", ""), answer.headers.get("last-modified", ""), str(_total_of(answer)))
    return hashlib.sha256("\n".join(marks).encode()).hexdigest()[:12]


def _begin(part: Path, content: bytes, total: int) -> int:
    """Bytes that the part file holds: those of an earlier try, or at least ``content``. Parts of other versions go."""
    target_name = part.name.rsplit(".", 2)[0]
    try:
        for other in part.parent.glob(f"{glob.escape(target_name)}.*.part"):
            if other != part:
                other.unlink(missing_ok=True)
        held = part.stat().st_size
    except FileNotFoundError:
        held = 0
    except OSError as error:
        raise _in_the_way(part, error) from error
    return held if len(content) < held <= total else _write_at(part, 0, content)


def _write_at(part: Path, offset: int, content: bytes) -> int:
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("r+b" if part.exists() else "w+b") as file:
            file.seek(offset)
            file.write(content)
            file.truncate()
    except OSError as error:
        raise _in_the_way(part, error) from error
    return offset + len(content)


def _rename(part: Path, target: Path) -> None:
    try:
        part.replace(target)
    except OSError as error:
        raise _in_the_way(target, error) from error


def _in_the_way(file: Path, error: OSError) -> LocalFileProblem:
    return LocalFileProblem(f"{file} cannot be written: {error.strerror}.")
