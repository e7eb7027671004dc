"""The code archive: fetched from the API, checked against its digest, unpacked so that nothing lands outside the work
folder.

A download resumes where it broke off, and waits while the API is away.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile

from trainmaster_runtime import clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from http.client import HTTPResponse
    from typing import IO

MAX_BYTES = 8 * 2**30
MAX_FILES = 500_000
# An archive may unpack to so much in any case and, above that, to so many times its own size: code compresses tenfold,
# and what compresses a thousandfold only fills the disk of its node.
ANY_BYTES = 256 * 2**20
MAX_RATIO = 50
_CHUNK_BYTES = 1 << 20

PATIENCE_S = 600.0  # without a single new byte
_TIMEOUT_S = 20.0
_BACK_OFF_S = 10.0
_READ_BYTES = 1 << 18
_OVER = (401, 403, 404, 410)


class ArchiveRefused(Exception):
    """A sentence for the user."""


def unpack(path: str, digest: str | None, target: str, reserved: tuple[str, ...] = ()) -> int:
    """Unpack ``path`` (.tar.gz) into ``target``; returns the number of files.

    Args:
        digest: ``sha256:<hex>`` of the archive, checked before anything is written.
        reserved: names at the top that are mounted over; the archive may hold folders of these names, nothing else.

    Raises:
        ArchiveRefused: wrong digest, or a member that is absolute, climbs out, or is neither file, folder nor link.
        OSError: cannot be read or written.
    """
    with open(path, "rb") as stream:
        if digest is not None:
            _check_digest(stream, digest)
        packed = os.fstat(stream.fileno()).st_size
        try:
            with tarfile.open(fileobj=stream, mode="r:*") as archive:
                return _extract(archive, os.path.realpath(target), reserved, _room_for(packed))
        except (tarfile.TarError, EOFError) as error:
            raise ArchiveRefused("The code archive cannot be read (%s); upload it again." % error) from error


def _check_digest(stream: IO[bytes], digest: str) -> None:
    digest_state = hashlib.sha256()
    while True:
        chunk = stream.read(_CHUNK_BYTES)
        if not chunk:
            break
        digest_state.update(chunk)
    stream.seek(0)
    if digest != "sha256:" + digest_state.hexdigest():
        raise ArchiveRefused(
            "The code archive is not the one that was uploaded: its digest is sha256:%s, expected %s; upload it again."
            % (digest_state.hexdigest(), digest)
        )


def _room_for(packed_bytes: int) -> int:
    return min(MAX_BYTES, max(ANY_BYTES, MAX_RATIO * packed_bytes))


def _extract(archive: tarfile.TarFile, root: str, reserved: tuple[str, ...], room: int) -> int:
    links: list[tuple[str, str]] = []
    files = 0
    limit = room
    for member in archive:
        name = _inside(member.name)
        if name == ".":
            continue
        if name in reserved and not member.isdir():
            raise ArchiveRefused(
                "The code archive holds %r where the platform mounts a folder; rename it or leave it out." % name
            )
        files += 1
        where = os.path.join(root, name)
        source = os.path.join(root, _inside(member.linkname)) if member.islnk() else ""
        # A hard link becomes a copy.
        room -= member.size if member.isfile() else _size_of(source) if source else 0
        if files > MAX_FILES or room < 0:
            raise ArchiveRefused(
                "The code archive unpacks to more than %d files or %d MiB, which is not code; mount data instead of "
                "packing it." % (MAX_FILES, limit >> 20)
            )
        if member.isdir():
            os.makedirs(where, exist_ok=True)
        elif member.issym():
            links.append((member.linkname, where))
        elif member.islnk():
            _copy(source, where)
        elif member.isfile():
            content = archive.extractfile(member)
            if content is not None:
                _write(content, where, member)
        else:
            raise ArchiveRefused("The code archive holds %r, which is neither file, folder nor link." % member.name)
    _make_links(links, root)
    return files


def _size_of(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:  # the copy reports it
        return 0


def _inside(name: str) -> str:
    clean = os.path.normpath(name)
    if name.startswith("/") or clean == ".." or clean.startswith("../"):
        raise ArchiveRefused("The code archive holds %r, which lies outside of it; pack the folder again." % name)
    return clean


def _write(source: IO[bytes], where: str, member: tarfile.TarInfo) -> None:
    os.makedirs(os.path.dirname(where), exist_ok=True)
    with open(where, "wb") as stream:
        shutil.copyfileobj(source, stream, _CHUNK_BYTES)
        os.fchmod(stream.fileno(), (member.mode & 0o777) | 0o600)
    os.utime(where, (member.mtime, member.mtime))


def _copy(source: str, where: str) -> None:
    if not os.path.isfile(source):
        raise ArchiveRefused("The code archive holds a hard link to %r, which it does not hold." % source)
    os.makedirs(os.path.dirname(where), exist_ok=True)
    shutil.copy2(source, where)


def _make_links(links: list[tuple[str, str]], root: str) -> None:
    # Links come last, so that no file is ever written through one. Where each ends is asked of the file system when
    # all stand: chains of links cannot be judged by their text.
    for target, where in links:
        if os.path.isabs(target):
            raise ArchiveRefused("The code archive holds a link to %r, outside of it." % target)
        parent = os.path.realpath(os.path.dirname(where))
        if parent != root and not parent.startswith(root + "/"):
            raise ArchiveRefused("The code archive holds %r behind a link that leads out of it." % where)
        os.makedirs(parent, exist_ok=True)
        if os.path.lexists(where):
            raise ArchiveRefused("The code archive holds %r twice." % os.path.relpath(where, root))
        os.symlink(target, where)
    for target, where in links:
        end = os.path.realpath(where)
        if end != root and not end.startswith(root + "/"):
            for _, made in links:
                os.unlink(made)
            raise ArchiveRefused("The code archive holds a link to %r, outside of it." % target)


class CodeAway(Exception):
    """A sentence for the user."""


def fetch(
    api_url: str,
    token: str,
    path: str,
    *,
    say: Callable[[str], None],
    wait: Callable[[float], None],
    patience_s: float = PATIENCE_S,
) -> None:
    """Write the archive to ``path``. Its digest is for the caller to check.

    Args:
        say: writes a line into the replica's log; called once when the API is away.
        wait: waits so many seconds, and raises when the replica is to stop.

    Raises:
        CodeAway: the API refused, or was away for too long.
        OSError: ``path`` cannot be written.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    download = _Download(api_url, token, fd)
    try:
        end = clock.monotonic() + patience_s
        failures = 0
        while True:
            received = download.size
            why = download.go_on(wait)
            if why is None:
                return
            if download.size > received:
                end, failures = clock.monotonic() + patience_s, 0
            failures += 1
            if failures == 2:
                say("the code archive does not arrive (%s); trying again" % why)
            if clock.monotonic() >= end:
                raise CodeAway(
                    "The code archive did not arrive within %g s (%s); is the platform's API reachable from its nodes?"
                    % (patience_s, why)
                )
            wait(min(_BACK_OFF_S, 0.25 * 2 ** min(failures, 8)))
    finally:
        os.close(fd)


class _Download:
    """``size``: bytes that are here."""

    def __init__(self, api_url: str, token: str, fd: int) -> None:
        self._url = api_url.rstrip("/") + "/api/v1/runtime/code"
        self._token = token
        self._fd = fd
        self._tag: str | None = None  # of the bytes that are here
        self.size = 0

    def go_on(self, wait: Callable[[float], None]) -> str | None:
        """Ask for what is missing; ``None`` when all is here, else why not. Raises :class:`CodeAway`."""
        from http.client import HTTPConnection, HTTPException, HTTPSConnection
        from urllib.parse import urlsplit

        parts = urlsplit(self._url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
        headers = {"Authorization": "Bearer " + self._token}
        if self.size and self._tag:
            headers.update({"Range": "bytes=%d-" % self.size, "If-Range": self._tag})
        try:
            connection.request("GET", parts.path, headers=headers)
            response = connection.getresponse()
        except (OSError, HTTPException) as error:
            connection.close()
            return str(error) or type(error).__name__
        try:
            if response.status in _OVER:
                raise CodeAway("The platform does not hand out the code archive: %s" % _reason(response))
            if response.status not in (200, 206):
                return "HTTP %d" % response.status
            if response.status == 200:
                self._restart(response.getheader("ETag"))
            return self._take(response, wait)
        finally:
            connection.close()

    def _restart(self, tag: str | None) -> None:
        self._tag = tag
        self.size = 0
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)

    def _take(self, response: HTTPResponse, wait: Callable[[float], None]) -> str | None:
        from http.client import HTTPException

        missing = response.length
        while True:
            try:
                data = response.read(_READ_BYTES)
            except (OSError, HTTPException) as error:
                return str(error) or type(error).__name__
            if not data:
                break
            remaining = memoryview(data)
            while remaining:
                written = os.write(self._fd, remaining)
                self.size += written
                remaining = remaining[written:]
            if missing is not None:
                missing -= len(data)
            wait(0.0)
        return None if not missing else "the connection broke off"


def _reason(response: HTTPResponse) -> str:
    """The API's own sentence, or the status."""
    import json
    from http.client import HTTPException

    try:
        detail = json.loads(response.read(65_536)).get("detail")
    except (OSError, ValueError, AttributeError, HTTPException):
        detail = None
    return detail if isinstance(detail, str) else "HTTP %d." % response.status
