"""Content-addressed code archives (.tar.gz), stored by the SHA-256 of their bytes.

An upload is a file per user, so that users cannot corrupt each other's; it grows by chunks at matching offsets, is
hashed when complete and then renamed into place. The folder is the truth about bytes, the table ``archives`` about use;
garbage collection compares both. Safe for several processes on one file system: each upload is guarded by a lock on
its file.
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

from sqlalchemy import delete, exists, or_, select

from core.db.engine import SessionFactory, unit_of_work
from core.db.repositories.retention import has_released_code
from core.db.repositories.storage_usage import UNFINISHED_AFTER
from core.db.tables import Archive, Job, Study
from core.domain.errors import Conflict, InsufficientStorage, InvalidRequest, NotFound, PayloadTooLarge

# One archive per transaction, so many per call: the next garbage collection continues.
_SWEEP_BATCH: Final = 500
_UNUSED_AFTER: Final = timedelta(days=30)
_DIGEST: Final = re.compile(r"^sha256:([0-9a-f]{64})$")
_GZIP_MAGIC: Final = b"\x1f\x8b"
_HASH_CHUNK: Final = 2**20
# Reserved on the disk of the archives for other users of it (database, spools).
_RESERVE_BYTES: Final = 64 * 2**20


class WrongOffset(Conflict):
    """A chunk whose offset is not the end. ``received_bytes`` is where to continue."""

    def __init__(self, received_bytes: int) -> None:
        super().__init__(
            f"The server has {received_bytes} bytes of this archive; go on from offset {received_bytes}.",
            field="offset",
        )
        self.received_bytes = received_bytes


@dataclass(frozen=True, slots=True)
class ArchiveUpload:
    """Progress of an archive. ``is_complete``: its bytes are here and verified. ``size_bytes``: as announced."""

    digest: str
    size_bytes: int
    received_bytes: int

    @property
    def is_complete(self) -> bool:
        return self.received_bytes == self.size_bytes


class NotAnnounced(NotFound):
    """This user has begun no upload of this archive."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"No upload of {digest} was begun; begin with POST /api/v1/archives?digest=…&size=….")


def _parse_digest(digest: str) -> str:
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
        """The path of the archive once it is complete."""
        hexes = _parse_digest(digest)
        return self._folder / hexes[:2] / f"{hexes}.tar.gz"

    def has(self, digest: str) -> bool:
        """Whether the complete archive is here."""
        return self.path_of(digest).is_file()

    def is_announced(self, digest: str, user_id: str) -> bool:
        """Whether the archive is complete, or ``user_id`` has begun to upload it."""
        try:
            self.upload_progress(digest, user_id)
        except NotAnnounced:
            return False
        return True

    def upload_progress(self, digest: str, user_id: str) -> ArchiveUpload:
        """The archive's progress: complete, or the upload of ``user_id``.

        Raises:
            NotAnnounced: neither complete nor begun.
        """
        path = self.path_of(digest)
        try:
            size = path.stat().st_size
            return ArchiveUpload(digest, size, size)
        except FileNotFoundError:
            pass
        for partial, size in self._partial_files(digest, user_id):
            try:
                return ArchiveUpload(digest, size, partial.stat().st_size)
            except FileNotFoundError:  # completed or dropped meanwhile
                continue
        if path.is_file():
            return self.upload_progress(digest, user_id)
        raise NotAnnounced(digest)

    def start(self, digest: str, user_id: str, *, size_bytes: int) -> ArchiveUpload:
        """Begin or continue; complete at once if the archive exists.

        Raises:
            PayloadTooLarge: larger than the limit.
            InsufficientStorage: no space for it.
        """
        if size_bytes > self._limit:
            raise PayloadTooLarge(
                f"A code archive of {size_bytes:,} bytes is larger than the limit of {self._limit:,}; leave data and "
                "results out with a .trainmasterignore file, and mount data sets from a volume.",
                field="size",
            )
        try:
            upload = self.upload_progress(digest, user_id)
        except NotAnnounced:
            upload = None
        if upload is not None and (upload.is_complete or upload.size_bytes == size_bytes):
            return upload
        with _disk_words():
            self._partial.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self._partial).free - self._promised()
            if free < size_bytes + _RESERVE_BYTES:
                raise InsufficientStorage(
                    f"The platform's disk has no room for {size_bytes:,} bytes of code; ask an admin to free some, or "
                    "make the archive smaller with a .trainmasterignore file."
                )
            for partial, announced in self._partial_files(digest, user_id):
                if announced != size_bytes:  # its bytes are useless; an upload of this size was begun meanwhile
                    partial.unlink(missing_ok=True)
            self._upload_path(digest, user_id, size_bytes).touch(mode=0o600)
        return ArchiveUpload(digest, size_bytes, 0)

    def append(self, digest: str, user_id: str, *, offset: int, chunk: bytes) -> ArchiveUpload:
        """Append ``chunk`` at ``offset``; the last chunk also verifies the archive and moves it into place.

        A chunk is stored whole or not at all.

        Raises:
            NotAnnounced: ``start`` was not called, or the upload was dropped since.
            WrongOffset: ``offset`` is not the current end.
            InvalidRequest: more bytes than announced; or complete with another digest (then it is dropped).
            InsufficientStorage: the disk is full.
        """
        with _disk_words(), self._locked(digest, user_id) as locked:
            if locked is None:
                return self.upload_progress(digest, user_id)
            fd, path, size_bytes = locked
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
                self._finish(fd, path, digest)
            return ArchiveUpload(digest, size_bytes, received)

    def digests_older_than(self, moment: datetime) -> list[str]:
        """Archives completed before ``moment``."""
        found = []
        for path in self._folder.glob("??/*.tar.gz"):
            try:
                if path.stat().st_mtime < moment.timestamp():
                    found.append("sha256:" + path.name.removesuffix(".tar.gz"))
            except FileNotFoundError:
                continue
        return found

    def remove(self, digest: str) -> None:
        """Delete a complete archive. Jobs that have unpacked it no longer need it; a restart does."""
        self.path_of(digest).unlink(missing_ok=True)

    def drop_unfinished(self, *, now: datetime, older_than: timedelta) -> int:
        """Delete uploads without progress for ``older_than``; returns their number."""
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

    def _promised(self) -> int:
        """Bytes announced by uploads in progress and not received yet: two large ones must not share the space."""
        promised = 0
        for path in self._partial.glob("*.part"):
            try:
                promised += max(0, int(path.name.split(".")[2]) - path.stat().st_size)
            except (FileNotFoundError, ValueError, IndexError):
                continue
        return promised

    def _upload_path(self, digest: str, user_id: str, size_bytes: int) -> Path:
        return self._partial / f"{self._upload_stem(digest, user_id)}.{size_bytes}.part"

    def _upload_stem(self, digest: str, user_id: str) -> str:
        # The user's id is hashed, since it may be no valid file name.
        return f"{_parse_digest(digest)}.{hashlib.sha256(user_id.encode()).hexdigest()[:16]}"

    def _partial_files(self, digest: str, user_id: str) -> list[tuple[Path, int]]:
        """The files of the user's uploads of this archive, with their announced sizes; more than one only in a race."""
        stem = self._upload_stem(digest, user_id)
        return [(path, int(path.name.split(".")[2])) for path in sorted(self._partial.glob(f"{stem}.*.part"))]

    @contextmanager
    def _locked(self, digest: str, user_id: str) -> Iterator[tuple[int, Path, int] | None]:
        """The upload's locked descriptor, path and announced size; ``None``: the archive is complete already."""
        while True:
            if self.has(digest):
                for partial, _ in self._partial_files(digest, user_id):  # superseded by another user's upload
                    partial.unlink(missing_ok=True)
                yield None
                return
            files = self._partial_files(digest, user_id)
            if not files:
                if self.has(digest):
                    continue
                raise NotAnnounced(digest)
            path, size = files[0]
            try:
                fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if not _is_still(fd, path):  # completed or dropped while we waited for the lock: retry
                    continue
                yield fd, path, size
                return
            finally:
                os.close(fd)

    def _finish(self, fd: int, upload: Path, digest: str) -> None:
        hexes = hashlib.sha256()
        position = 0
        first = b""
        while block := os.pread(fd, _HASH_CHUNK, position):
            first = first or block[:2]
            hexes.update(block)
            position += len(block)
        if hexes.hexdigest() != _parse_digest(digest):
            upload.unlink()
            raise InvalidRequest(
                "The archive's bytes do not have this digest, so they were dropped; pack it again and send it from "
                "the start.",
                field="digest",
            )
        if first != _GZIP_MAGIC:
            upload.unlink()
            raise InvalidRequest(
                "The archive is not a .tar.gz file; pack the folder with tar and gzip.", field="digest"
            )
        os.fchmod(fd, 0o644)  # replicas may run as other users
        os.fsync(fd)
        final = self.path_of(digest)
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            upload.rename(final)
        except FileNotFoundError:
            # Another upload of the same bytes was first, and this file was removed as superseded.
            if not final.is_file():
                raise NotAnnounced(digest) from None
        _sync_folder(final.parent)


def _is_still(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


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


def gc_archives(sessions: SessionFactory, store: ArchiveStore, *, now: datetime) -> int:
    """Delete stale uploads, and archives that no job or study references (except deleted ones) and that were not used
    lately.

    Safe during uploads and submissions: these set ``used_at`` before they open the file, and the row is deleted here
    before the file, in one transaction.

    Returns:
        The number of deleted files.
    """
    dropped = store.drop_unfinished(now=now, older_than=UNFINISHED_AFTER)
    # A study that is paused, or extended long after its jobs were deleted, starts trials from it.
    of_a_study = Study.spec["template"]["code"].as_string() == Archive.digest
    is_named = or_(
        exists().where(Job.spec["code"].as_string() == Archive.digest, ~has_released_code()),
        exists().where(of_a_study, Study.deleted_at.is_(None)),
    )
    is_stale = Archive.used_at < now - _UNUSED_AFTER
    with unit_of_work(sessions, read_only=True) as session:
        digests = list(session.scalars(select(Archive.digest).where(is_stale, ~is_named).limit(_SWEEP_BATCH)))
        # Completed just before a crash that lost the row, and never requested again.
        old = store.digests_older_than(now - _UNUSED_AFTER)
        known = set(session.scalars(select(Archive.digest).where(Archive.digest.in_(old[:_SWEEP_BATCH]))))
    for digest in digests:
        with unit_of_work(sessions) as session:
            hit = session.execute(
                delete(Archive).where(Archive.digest == digest, is_stale, ~is_named).returning(Archive.digest)
            ).scalar_one_or_none()
            if hit is not None:
                # Before the commit: a request that waits for this row's lock to announce the archive again then finds
                # no file.
                store.remove(digest)
                dropped += 1
    for digest in set(old[:_SWEEP_BATCH]) - known:
        store.remove(digest)
        dropped += 1
    return dropped
