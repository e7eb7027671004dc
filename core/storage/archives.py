"""Code archives (.tar.gz), kept by the SHA-256 of their bytes.

An upload is a file of its own per user, so that nobody spoils another's; it grows by chunks at the right offset, is
hashed when it is whole and then renamed into its place. The folder is the truth about bytes, the table ``archives``
about use. Safe for several processes on one file system: each upload is guarded by a lock on its file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from core.domain.errors import Conflict, InsufficientStorage, InvalidRequest, PayloadTooLarge

_DIGEST: Final = re.compile(r"^sha256:([0-9a-f]{64})$")
_GZIP_MAGIC: Final = b"\x1f\x8b"
_HASH_CHUNK: Final = 2**20
# Left free for everybody else on the disk of the archives (database, spools).
_RESERVE_BYTES: Final = 64 * 2**20


class WrongOffset(Conflict):
    """A chunk came for another place than the end. ``received_bytes`` is where to go on."""

    def __init__(self, received_bytes: int) -> None:
        super().__init__(
            f"The server has {received_bytes} bytes of this archive; go on from offset {received_bytes}.",
            field="offset",
        )
        self.received_bytes = received_bytes


@dataclass(frozen=True, slots=True)
class Upload:
    """How far an archive is. ``is_complete``: its bytes are here and proven."""

    digest: str
    received_bytes: int
    is_complete: bool


def parse_digest(digest: str) -> str:
    """The 64 hex digits of ``sha256:<hex>``. Raises ``InvalidRequest``."""
    match = _DIGEST.match(digest)
    if match is None:
        raise InvalidRequest("digest must be sha256: and 64 hexadecimal digits in lower case.", field="digest")
    return match[1]


class ArchiveStore:
    """All methods block on the disk."""

    def __init__(self, folder: Path, *, limit_bytes: int) -> None:
        self._folder = folder
        self._partial = folder / "partial"
        self._limit = limit_bytes

    def path_of(self, digest: str) -> Path:
        """Where the archive lies once it is complete."""
        hexes = parse_digest(digest)
        return self._folder / hexes[:2] / f"{hexes}.tar.gz"

    def has(self, digest: str) -> bool:
        """True when the whole archive is here."""
        return self.path_of(digest).is_file()

    def look(self, digest: str, user_id: str) -> Upload:
        """How far the archive is: complete, or what ``user_id`` has sent of it."""
        path = self.path_of(digest)
        if path.is_file():
            return Upload(digest, path.stat().st_size, is_complete=True)
        try:
            received = self._upload_path(digest, user_id).stat().st_size
        except FileNotFoundError:
            received = 0
        return Upload(digest, received, is_complete=False)

    def start(self, digest: str, user_id: str, *, size_bytes: int) -> Upload:
        """Begin or go on; complete at once when the archive is known.

        Raises:
            PayloadTooLarge: larger than the platform takes.
            InsufficientStorage: no room for it.
        """
        if size_bytes > self._limit:
            raise PayloadTooLarge(
                f"A code archive of {size_bytes:,} bytes is larger than the limit of {self._limit:,}; leave data and "
                "results out with a .trainmasterignore file, and mount data sets from a volume.",
                field="size",
            )
        upload = self.look(digest, user_id)
        if upload.is_complete:
            return upload
        with _disk_words():
            self._partial.mkdir(parents=True, exist_ok=True)
            if upload.received_bytes > size_bytes:  # begun under another size: nothing of it is of use
                self._upload_path(digest, user_id).unlink(missing_ok=True)
                upload = Upload(digest, 0, is_complete=False)
            free = shutil.disk_usage(self._partial).free
        if free < size_bytes - upload.received_bytes + _RESERVE_BYTES:
            raise InsufficientStorage(
                "The platform's disk has no room for this code archive; ask an admin to free some."
            )
        return upload

    def append(self, digest: str, user_id: str, *, offset: int, size_bytes: int, chunk: bytes) -> Upload:
        """Add ``chunk`` at ``offset``; the chunk that makes the archive whole also proves it and puts it in its place.

        A chunk is taken whole or not at all. Sending the last one again after a lost answer is harmless.

        Raises:
            WrongOffset: ``offset`` is not the end of what is here.
            InvalidRequest: more bytes than announced; or whole and not what the digest says (then it is dropped).
            InsufficientStorage: the disk is full.
        """
        with _disk_words(), self._locked(digest, user_id) as fd:
            if self.has(digest):
                return self.look(digest, user_id)
            received = os.fstat(fd).st_size
            if received != offset:
                raise WrongOffset(received)
            if received + len(chunk) > size_bytes:
                raise InvalidRequest(
                    f"More bytes than announced: the archive was said to have {size_bytes:,}.", field="size"
                )
            try:
                _write_all(fd, chunk, offset)
            except OSError:
                os.ftruncate(fd, received)
                raise
            received += len(chunk)
            if received == size_bytes:
                self._finish(fd, digest, user_id)
            return Upload(digest, received, is_complete=received == size_bytes)

    def remove(self, digest: str) -> None:
        """Forget a complete archive. Jobs that have unpacked it do not need it any more; a restart does."""
        self.path_of(digest).unlink(missing_ok=True)

    def drop_unfinished(self, *, now: datetime, older_than: timedelta) -> int:
        """Delete uploads that got no byte for ``older_than``; the number of them."""
        dropped = 0
        limit = (now - older_than).timestamp()
        for path in self._partial.glob("*.part") if self._partial.is_dir() else ():
            try:
                if path.stat().st_mtime < limit:
                    path.unlink()
                    dropped += 1
            except FileNotFoundError:
                continue
        return dropped

    def _upload_path(self, digest: str, user_id: str) -> Path:
        # The user's id is hashed: it is not ours to say that it is a file name.
        return self._partial / f"{parse_digest(digest)}.{hashlib.sha256(user_id.encode()).hexdigest()[:16]}.part"

    @contextmanager
    def _locked(self, digest: str, user_id: str) -> Iterator[int]:
        """The upload's file, locked; made when it is not there."""
        path = self._upload_path(digest, user_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                try:
                    is_same = os.path.samestat(os.fstat(fd), path.lstat())
                except FileNotFoundError:
                    is_same = False
                if not is_same:  # finished or dropped while we waited for the lock: look again
                    continue
                yield fd
                return
            finally:
                if self.has(digest):  # what is left of an upload that another one overtook
                    path.unlink(missing_ok=True)
                os.close(fd)

    def _finish(self, fd: int, digest: str, user_id: str) -> None:
        upload = self._upload_path(digest, user_id)
        hexes = hashlib.sha256()
        position = 0
        first = b""
        while block := os.pread(fd, _HASH_CHUNK, position):
            first = first or block[:2]
            hexes.update(block)
            position += len(block)
        if hexes.hexdigest() != parse_digest(digest):
            upload.unlink()
            raise InvalidRequest(
                "The archive's bytes do not have this digest, so they were dropped; pack it again and send it from the start.",
                field="digest",
            )
        if first != _GZIP_MAGIC:
            upload.unlink()
            raise InvalidRequest(
                "The archive is not a .tar.gz file; pack the folder with tar and gzip.", field="digest"
            )
        os.fsync(fd)
        final = self.path_of(digest)
        final.parent.mkdir(parents=True, exist_ok=True)
        os.chmod(fd, 0o644)  # replicas may run as other users
        upload.rename(final)
        _sync_folder(final.parent)


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        offset += written
        view = view[written:]


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _disk_words() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InsufficientStorage(
                "The platform's disk is full, the archive was not taken; what was sent before is kept. "
                "Ask an admin to free some room and send it again."
            ) from error
        raise
