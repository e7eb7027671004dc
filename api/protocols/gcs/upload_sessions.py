"""Uploads in one request, or in chunks of a resumable session.

A session has no row: ``upload_id`` holds the upload's target, signed by the platform, and a draft file at the bucket's
root holds the bytes received so far. So any API process can take the next chunk, and sessions survive restarts.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Final, Self

import orjson

from api.protocols.gcs.answers import ConditionNotMet
from api.protocols.gcs.buckets import Bucket, object_path
from api.protocols.gcs.checksums import Checksums, ExpectedChecksums, checksums_in_metadata, checksums_of
from api.protocols.gcs.objects import Preconditions, find_object, find_or_none
from api.protocols.gcs.parameters import demand_served
from api.protocols.gcs.upload_limits import UploadMeter
from api.protocols.kit.streams import write_all
from core.domain.errors import (
    InsufficientStorage,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    TrainmasterError,
    Unavailable,
)
from core.storage.tree import TreeEntry
from core.storage.volumes import UPLOADS

# As long as Cloud Storage keeps a session: https://cloud.google.com/storage/docs/resumable-uploads#introduction
_SESSION_LIFETIME_S: Final = 7 * 24 * 3600
# File next to a draft: the total size, as the first chunk that declared it.
_TOTAL: Final = ".total"
_RANGE: Final = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18}|\*)")


@dataclass(frozen=True, slots=True)
class UploadTarget:
    """The object that an upload creates, with its preconditions."""

    bucket: str
    name: str
    crc32c: str | None = None
    md5: str | None = None
    match: int | None = None
    not_match: int | None = None
    meta_match: int | None = None
    meta_not_match: int | None = None
    total_bytes: int | None = None  # as declared when the session started
    draft: str = ""
    is_open: bool = False  # begun without a token

    @property
    def condition(self) -> Preconditions:
        return Preconditions(self.match, self.not_match, self.meta_match, self.meta_not_match)

    @property
    def sums(self) -> ExpectedChecksums:
        return ExpectedChecksums(self.crc32c, self.md5)


def upload_target(bucket: str, query_name: str, condition: Preconditions, metadata: Any) -> UploadTarget:
    """From the query's name, which takes precedence, and the object's metadata (JSON).

    Raises ``InvalidRequest``, or its subclass ``NotServed`` for fields that would be dropped.
    """
    if not isinstance(metadata, dict):
        raise InvalidRequest("The object's metadata is no JSON object.")
    name = query_name or metadata.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest("Required: the object's name.", field="name")
    object_path(name)
    demand_served(metadata, bucket)
    sums = checksums_in_metadata(metadata)
    meta = condition.meta_match, condition.meta_not_match
    return UploadTarget(bucket, name, sums.crc32c, sums.md5, condition.match, condition.not_match, *meta)


class SingleRequestUpload:
    """Context manager of one upload; the object exists when the block ends without an error.

    ``expected``: checksums of the request's headers. Writing raises what ``meter`` raises, and then nothing is stored.
    """

    def __init__(self, bucket: Bucket, target: UploadTarget, expected: ExpectedChecksums, meter: UploadMeter) -> None:
        self.sums = Checksums()
        self._expected = expected
        self._meter = meter
        self._bucket = bucket
        self._target = target

    def __enter__(self) -> Self:
        self._target.condition.demand(find_or_none(self._bucket, self._target.name))
        tree, path = self._bucket.locate(object_path(self._target.name), makes=True)
        self._file = tree.new_file(path, replaces=not self._target.condition.must_be_new)
        self._fd = self._file.__enter__()
        return self

    def write(self, data: bytes) -> None:
        self._meter.count(len(data))
        self.sums.update(data)
        write_all(self._fd, data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.sums.compare(self._target.sums, self._expected)
        except TrainmasterError as wrong:
            with suppress(TrainmasterError):
                self._file.__exit__(type(wrong), wrong, wrong.__traceback__)
            raise
        try:
            self._file.__exit__(kind, error, trace)
        except FileExistsError:
            raise ConditionNotMet from None
        if error is None:
            self._meter.close()

    def entry(self) -> TreeEntry:
        return find_object(self._bucket, self._target.name)


def make_folder(bucket: Bucket, name: str) -> TreeEntry:
    """The empty object ``a/b/``, with which clients mark folders."""
    tree, path = bucket.locate(object_path(name), makes=True)
    tree.make_folder(path)
    return find_object(bucket, name)


# --- sessions --------------------------------------------------------------------------------------------------------


def begin(bucket: Bucket, target: UploadTarget, key: bytes, now_s: float) -> str:
    """Start a session; return its ``upload_id``. Also removes abandoned drafts."""
    target.condition.demand(find_or_none(bucket, target.name))
    bucket.locate(object_path(target.name), makes=True)
    _gc_drafts(bucket, now_s)
    # By its name a draft in the bucket of all projects counts as that project's.
    project = bucket.project_of(target.name) if bucket.is_shared else None
    session = asdict(target) | {"draft": f"{project}.{secrets.token_hex(16)}" if project else secrets.token_hex(16)}
    with bucket.tree().draft(f"{UPLOADS}/{session['draft']}"):
        pass
    text = base64.urlsafe_b64encode(orjson.dumps(session)).rstrip(b"=").decode()
    return f"{text}.{_mac(key, text)}"


def read_session(upload_id: str, bucket: str, key: bytes) -> UploadTarget:
    """The target of a session. Raises ``NotFound`` for a forged ``upload_id``, or another bucket's."""
    text, _, mac = upload_id.rpartition(".")
    if not upload_id.isascii() or not hmac.compare_digest(mac, _mac(key, text)):
        raise NotFound("There is no such upload; begin it again.")
    target = UploadTarget(**orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))))
    if target.bucket != bucket:
        raise NotFound("There is no such upload; begin it again.")
    return target


@dataclass(frozen=True, slots=True)
class Chunk:
    """Position of a request's body in the upload. ``total``: size of the whole upload, if known."""

    start: int = 0
    length: int | None = None
    total: int | None = None
    is_status_query: bool = False


def parse_content_range(header: str | None) -> Chunk:
    """From ``Content-Range``; without it the body is the whole rest. Raises ``InvalidRequest``."""
    if header is None:
        return Chunk()
    match = _RANGE.fullmatch(header.strip())
    if match is None:
        raise InvalidRequest(f"Failed to parse Content-Range header: {header[:100]}", field="content-range")
    first, last, total = match.groups()
    whole = None if total == "*" else int(total)
    if first is None:
        return Chunk(total=whole, is_status_query=True)
    start, length = int(first), int(last) + 1 - int(first)
    if length < 1 or (whole is not None and start + length > whole):
        raise InvalidRequest(f"Failed to parse Content-Range header: {header[:100]}", field="content-range")
    return Chunk(start, length, whole)


class ResumedUpload:
    """Context manager of a session's draft, locked against other requests.

    ``size_bytes``: received so far. Entering raises ``NotFound`` if the draft is gone. An upload that is too large, or
    for which there is no space, is dropped with all of its data.
    """

    def __init__(self, bucket: Bucket, target: UploadTarget, chunk: Chunk, meter: UploadMeter) -> None:
        self._bucket, self._target, self._chunk, self._meter = bucket, target, chunk, meter
        self._total = target.total_bytes if chunk.total is None else chunk.total
        self._path = f"{UPLOADS}/{target.draft}"
        self.size_bytes = 0
        self._skips = 0

    def __enter__(self) -> Self:
        if not self._bucket.tree().exists(self._path):
            raise NotFound("This upload is over or was given up; begin it again.")
        self._file = self._bucket.tree().draft(self._path)
        self._fd = self._file.__enter__()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.__exit__(None, None, None)
            raise Unavailable("Another request writes to this upload; try again.", retry_after_s=1.0) from None
        self.size_bytes = os.fstat(self._fd).st_size
        # Repeated bytes are skipped; a chunk that would leave a hole is not written at all.
        self._before = self.size_bytes
        self._received = 0
        self._skips = self.size_bytes - self._chunk.start
        os.lseek(self._fd, 0, os.SEEK_END)
        try:
            self._demand_equal_total()
        except BaseException:
            self._file.__exit__(None, None, None)
            raise
        return self

    def _demand_equal_total(self) -> None:
        """Raises ``InvalidRequest`` if an earlier chunk, or the session's start, declared another total size."""
        total = self._chunk.total
        if total is None:
            return
        if total < self.size_bytes:
            raise InvalidRequest(
                f"Invalid Content-Range: {self.size_bytes} bytes were received, and the whole has {total}.",
                field="content-range",
            )
        announced = total if self._target.total_bytes is None else self._target.total_bytes
        with self._bucket.tree().draft(f"{self._path}{_TOTAL}") as fd:
            recorded = os.pread(fd, 32, 0) or b"%d" % announced
            if int(recorded) != total:
                raise InvalidRequest(
                    f"Invalid Content-Range: the whole has {total} bytes, and earlier had {int(recorded)}.",
                    field="content-range",
                )
            os.pwrite(fd, recorded, 0)

    def announce(self, body_bytes: int | None) -> None:
        """Call before reading the body. Raises ``PayloadTooLarge``, ``InsufficientStorage``."""
        if self._chunk.is_status_query:
            return
        length = body_bytes if self._chunk.length is None else self._chunk.length
        least = None if length is None else self._chunk.start + length
        self._meter.announce(least if self._total is None else self._total, there_bytes=self.size_bytes)

    def demand_announced(self) -> None:
        """Call at the body's end. Raises ``InvalidRequest``, and discards the chunk, if its length differs from
        Content-Range or exceeds the total.
        """
        if self._chunk.length is not None and self._received != self._chunk.length:
            self._refuse_length()
        if self._total is not None and self.size_bytes > self._total:
            os.ftruncate(self._fd, self._before)
            raise InvalidRequest(
                f"The whole has {self._total} bytes, as X-Upload-Content-Length says, and more were received.",
                field="x-upload-content-length",
            )

    def _refuse_length(self) -> None:
        os.ftruncate(self._fd, self._before)
        raise InvalidRequest(
            f"Content-Range announces {self._chunk.length} bytes, and the body has another length.",
            field="content-range",
        )

    def write(self, data: bytes) -> None:
        self._received += len(data)
        announced = 0 if self._chunk.is_status_query else self._chunk.length
        if announced is not None and self._received > announced:
            self._refuse_length()
        if self._skips < 0:
            return
        rest, self._skips = data[self._skips :], max(0, self._skips - len(data))
        self._meter.count(len(rest))
        write_all(self._fd, rest)
        self.size_bytes += len(rest)

    def is_whole(self) -> bool:
        """Whether the upload is complete: by the total size or, if no length was declared, by the body's end."""
        chunk = self._chunk
        if self._total is not None:
            return self.size_bytes >= self._total
        return chunk.length is None and not chunk.is_status_query

    def finish(self, expected: ExpectedChecksums) -> tuple[TreeEntry, Checksums]:
        """Publish the object. ``expected``: checksums of the whole, from the last chunk's headers.

        Raises ``InvalidRequest`` for a wrong checksum, and then drops the draft.
        """
        target = self._target
        sums = checksums_of(self._fd)
        try:
            sums.compare(target.sums, expected)
        except InvalidRequest:
            self.drop()
            raise
        target.condition.demand(find_or_none(self._bucket, target.name))
        tree, path = self._bucket.locate(object_path(target.name), makes=True)
        try:
            self._bucket.tree().publish(self._path, tree, path, replaces=not target.condition.must_be_new)
        except FileExistsError:
            raise ConditionNotMet from None
        self._bucket.tree().delete(f"{self._path}{_TOTAL}")
        return find_object(self._bucket, target.name), sums

    def drop(self) -> None:
        self._bucket.tree().delete(self._path)
        self._bucket.tree().delete(f"{self._path}{_TOTAL}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.__exit__(kind, error, trace)
        except InsufficientStorage:  # raised by the file system
            self.drop()
            raise
        if isinstance(error, PayloadTooLarge | InsufficientStorage):
            self.drop()
        else:
            self._meter.close()


def _mac(key: bytes, text: str) -> str:
    return base64.urlsafe_b64encode(hmac.new(key, f"upload:{text}".encode(), hashlib.sha256).digest()).decode()


def _gc_drafts(bucket: Bucket, now_s: float) -> None:
    try:
        tree = bucket.tree().below(UPLOADS)
        with tree.open_folder() as fd:
            for name in os.listdir(fd):  # noqa: PTH208 (a descriptor, not a path)
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_mtime < now_s - _SESSION_LIFETIME_S:
                    os.unlink(name, dir_fd=fd)
    except (TrainmasterError, OSError):
        return  # no drafts yet, or another process deletes them
