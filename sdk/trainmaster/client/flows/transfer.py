"""Resumable uploads of code archives and downloads of files."""

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
# One request per window: after a broken connection at most one window is repeated.
WINDOW_BYTES: Final = 16 * 2**20
_VERSIONS_TRIED: Final = 3  # of a file that changes during the download
_TOTAL: Final = re.compile(r"^bytes (?:\d+-\d+|\*)/(\d+)$")

# Called with the bytes transferred and the total.
Progress: TypeAlias = Callable[[int, int], None]
# Takes ``first`` and ``last`` (inclusive), or nothing for all bytes.
Read: TypeAlias = Callable[..., Call[HttpResponse]]


def no_progress(done: int, total: int) -> None:
    pass


def upload_archive(
    archive: Path, *, digest: str, project: str | None = None, progress: Progress = no_progress
) -> Flow[ArchiveView]:
    """Upload an archive; only the bytes that the server lacks are sent.

    Args:
        digest: ``sha256:…`` of the file.
        project: see ``start_archive``.
    """
    size = yield RunBlocking(partial(_size_of, archive))
    view: ArchiveView = yield from calls.start_archive(digest, size, project=project)
    corrections = 0
    while not view.is_complete:
        offset = view.received_bytes
        progress(offset, size)
        chunk = yield RunBlocking(partial(_read_at, archive, offset))
        if not chunk:
            raise ServerFailure(
                f"The server has {offset} bytes of the archive and still expects more; upload it again."
            )
        try:
            view = yield from calls.append_archive(digest, offset, chunk)
            corrections = 0
        except Conflict:
            # The response to a chunk was lost, or another client uploads the same code: get the present offset.
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
    """The content of a file in the job's output."""
    answer = yield from calls.read_file_range(job, file)
    return answer.content


def download_file(job: str, file: str, target: Path | str, *, progress: Progress = no_progress) -> Flow[Path]:
    """Download a file of the job's output to ``target`` (into it, if it is a folder); returns its path.

    The bytes are written to a hidden ``.part`` file next to it, from which a later call resumes if the server's file is
    unchanged; ``target`` is replaced atomically.
    """
    return (yield from copy_content(partial(calls.read_file_range, job, file), file, target, progress=progress))


def copy_content(read: Read, file: str, target: Path | str, *, progress: Progress = no_progress) -> Flow[Path]:
    """Like :func:`download_file`, for any range request ``read``. ``file``: its name on the server."""
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
    raise ServerFailure(f"{file} changes during the download; download it when it is complete.")


def _gather(read: Read, first: HttpResponse, part: Path, progress: Progress) -> Flow[bool]:
    """Fetch all bytes into ``part``; false if the server's file changed in the meantime."""
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
    # An empty file has no ranges.
    return (yield from read())


def _total_of(answer: HttpResponse) -> int:
    match = _TOTAL.match(answer.headers.get("content-range", ""))
    return int(match[1]) if match and answer.status == 206 else len(answer.content)


def _version_of(answer: HttpResponse) -> str:
    """A short identifier of the content of the server's file, from the response headers."""
    marks = (answer.headers.get("etag", ""), answer.headers.get("last-modified", ""), str(_total_of(answer)))
    return hashlib.sha256("\n".join(marks).encode()).hexdigest()[:12]


def _begin(part: Path, content: bytes, total: int) -> int:
    """Size of the part file: from an earlier try, or at least ``content``. Deletes parts of other versions."""
    target_name = part.name.rsplit(".", 2)[0]
    try:
        for other in part.parent.glob(f"{glob.escape(target_name)}.*.part"):
            if other != part:
                other.unlink(missing_ok=True)
        size = part.stat().st_size
    except FileNotFoundError:
        size = 0
    except OSError as error:
        raise _in_the_way(part, error) from error
    return size if len(content) < size <= total else _write_at(part, 0, content)


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
