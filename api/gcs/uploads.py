"""What is uploaded: in one request, or piece by piece to a session (resumable).

A session is its address: what the upload is to become stands in ``upload_id``, signed by the platform, and what has come so
far in a draft at the bucket's top. So any API process takes the next piece, and nothing is forgotten by a restart.
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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Final, Self

import orjson

from api.gcs.answers import ConditionNotMet
from api.gcs.buckets import UPLOADS, Bucket, object_path
from api.gcs.checksums import Checksums, checksums_of
from api.gcs.objects import Condition, find_object, find_or_none
from core.domain.errors import InvalidRequest, NotFound, TrainmasterError, Unavailable
from core.storage.tree import Entry

# As long as Cloud Storage keeps a session: https://cloud.google.com/storage/docs/resumable-uploads#introduction
_KEPT_S: Final = 7 * 24 * 3600
_RANGE: Final = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18}|\*)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an upload is to become."""

    bucket: str
    name: str
    crc32c: str | None = None
    md5: str | None = None
    match: int | None = None
    not_match: int | None = None
    draft: str = ""
    is_open: bool = False  # begun without a token

    @property
    def condition(self) -> Condition:
        return Condition(self.match, self.not_match)


def wanted_of(bucket: str, query: Mapping[str, str], told: Any) -> Wanted:
    """From the query, and the object's metadata as JSON. Raises ``InvalidRequest``."""
    if not isinstance(told, dict):
        raise InvalidRequest("The object's metadata is no JSON object.")
    name = told.get("name") or query.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest("Required: the object's name.", field="name")
    object_path(name)
    match, not_match = (_generation(query, key) for key in ("ifGenerationMatch", "ifGenerationNotMatch"))
    crc32c, md5 = (told.get(key) if isinstance(told.get(key), str) else None for key in ("crc32c", "md5Hash"))
    return Wanted(bucket, name, crc32c, md5, match, not_match)


def condition_of(query: Mapping[str, str]) -> Condition:
    return Condition(_generation(query, "ifGenerationMatch"), _generation(query, "ifGenerationNotMatch"))


def _generation(query: Mapping[str, str], key: str) -> int | None:
    text = query.get(key)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise InvalidRequest(f"Invalid argument: {key} is a generation's number.", field=key)
    return int(text)


class Insertion:
    """One upload in one request: ``with Insertion(…) as upload: upload.write(…)``; the object is there at the block's end."""

    def __init__(self, bucket: Bucket, wanted: Wanted) -> None:
        self.sums = Checksums()
        self._bucket = bucket
        self._wanted = wanted

    def __enter__(self) -> Self:
        self._wanted.condition.demand(find_or_none(self._bucket, self._wanted.name))
        tree, path = self._bucket.place(object_path(self._wanted.name), makes=True)
        self._file = tree.new_file(path, replaces=not self._wanted.condition.is_new_alone)
        self._fd = self._file.__enter__()
        return self

    def write(self, data: bytes) -> None:
        self.sums.update(data)
        _write(self._fd, data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.sums.compare(self._wanted.crc32c, self._wanted.md5)
        except TrainmasterError as wrong:
            with suppress(TrainmasterError):
                self._file.__exit__(type(wrong), wrong, wrong.__traceback__)
            raise
        try:
            self._file.__exit__(kind, error, trace)
        except FileExistsError:
            raise ConditionNotMet("At least one of the pre-conditions you specified did not hold.") from None

    def entry(self) -> Entry:
        return find_object(self._bucket, self._wanted.name)


def make_folder(bucket: Bucket, name: str) -> Entry:
    """The object ``a/b/`` without content, by which clients mark folders."""
    tree, path = bucket.place(object_path(name), makes=True)
    tree.make_folder(path)
    return find_object(bucket, name)


# --- sessions --------------------------------------------------------------------------------------------------------


def begin(bucket: Bucket, wanted: Wanted, key: bytes, now_s: float) -> str:
    """The ``upload_id`` of a new session; drafts that nobody went on with are removed."""
    wanted.condition.demand(find_or_none(bucket, wanted.name))
    bucket.place(object_path(wanted.name), makes=True)
    _sweep(bucket, now_s)
    session = asdict(wanted) | {"draft": secrets.token_hex(16)}
    with bucket.tree().draft(f"{UPLOADS}/{session['draft']}"):
        pass
    text = base64.urlsafe_b64encode(orjson.dumps(session)).rstrip(b"=").decode()
    return f"{text}.{_mac(key, text)}"


def read_session(upload_id: str, bucket: str, key: bytes) -> Wanted:
    """Raises ``NotFound``: it was none of ours, or another bucket's."""
    text, _, mac = upload_id.rpartition(".")
    if not upload_id.isascii() or not hmac.compare_digest(mac, _mac(key, text)):
        raise NotFound("There is no such upload; begin it again.")
    wanted = Wanted(**orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))))
    if wanted.bucket != bucket:
        raise NotFound("There is no such upload; begin it again.")
    return wanted


@dataclass(frozen=True, slots=True)
class Piece:
    """Where a request's body belongs: from ``start``; ``total`` is the whole upload's size, where it is known."""

    start: int = 0
    length: int | None = None
    total: int | None = None
    asks_only: bool = False


def piece_of(header: str | None) -> Piece:
    """From ``Content-Range``; without one the body is all that is left. Raises ``InvalidRequest``."""
    if header is None:
        return Piece()
    found = _RANGE.fullmatch(header.strip())
    if found is None:
        raise InvalidRequest(f"Failed to parse Content-Range header: {header[:100]}", field="content-range")
    first, last, total = found.groups()
    whole = None if total == "*" else int(total)
    if first is None:
        return Piece(total=whole, asks_only=True)
    start, length = int(first), int(last) + 1 - int(first)
    if length < 1 or (whole is not None and start + length > whole):
        raise InvalidRequest(f"Failed to parse Content-Range header: {header[:100]}", field="content-range")
    return Piece(start, length, whole)


class Continuation:
    """The draft of a session, held against others: ``with Continuation(…) as upload``.

    ``size_bytes``: what has come so far. Entering raises ``NotFound`` where the draft is gone.
    """

    def __init__(self, bucket: Bucket, wanted: Wanted, piece: Piece) -> None:
        self._bucket, self._wanted, self._piece = bucket, wanted, piece
        self._path = f"{UPLOADS}/{wanted.draft}"
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
        # What came twice is not written twice; what would leave a hole is not written at all.
        self._skips = self.size_bytes - self._piece.start
        os.lseek(self._fd, 0, os.SEEK_END)
        return self

    def write(self, data: bytes) -> None:
        if self._skips < 0:
            return
        rest, self._skips = data[self._skips :], max(0, self._skips - len(data))
        _write(self._fd, rest)
        self.size_bytes += len(rest)

    def is_whole(self) -> bool:
        """Whether all has come: as told by the total or, where nobody told a length, by the body's own end."""
        piece = self._piece
        if piece.total is not None:
            return self.size_bytes >= piece.total
        return piece.length is None and not piece.asks_only

    def finish(self) -> tuple[Entry, Checksums]:
        """Have it stand in its place. Raises ``InvalidRequest`` for a wrong checksum, and forgets the draft then."""
        wanted = self._wanted
        sums = checksums_of(self._fd)
        try:
            sums.compare(wanted.crc32c, wanted.md5)
        except InvalidRequest:
            self.drop()
            raise
        wanted.condition.demand(find_or_none(self._bucket, wanted.name))
        tree, path = self._bucket.place(object_path(wanted.name), makes=True)
        try:
            self._bucket.tree().publish(self._path, tree, path, replaces=not wanted.condition.is_new_alone)
        except FileExistsError:
            raise ConditionNotMet("At least one of the pre-conditions you specified did not hold.") from None
        return find_object(self._bucket, wanted.name), sums

    def drop(self) -> None:
        self._bucket.tree().delete(self._path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)


def _mac(key: bytes, text: str) -> str:
    return base64.urlsafe_b64encode(hmac.new(key, f"upload:{text}".encode(), hashlib.sha256).digest()).decode()


def _sweep(bucket: Bucket, now_s: float) -> None:
    try:
        tree = bucket.tree().below(UPLOADS)
        with tree.open_folder() as fd:
            for name in os.listdir(fd):  # noqa: PTH208 (a descriptor, not a path)
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_mtime < now_s - _KEPT_S:
                    os.unlink(name, dir_fd=fd)
    except (TrainmasterError, OSError):
        return  # nothing there yet, or somebody else sweeps


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
