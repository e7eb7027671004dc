"""Uploads: in one request, whose ``multipart/related`` body is parsed here (RFC 2387), or resumable in chunks."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from email.message import Message
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.concurrency import contextmanager_in_threadpool
from starlette.concurrency import run_in_threadpool

from api.app import audit
from api.app.unit_of_work import AppContext, AppContextDep
from api.auth import Caller
from api.protocols.gcs import upload_sessions
from api.protocols.gcs.answers import StorageRoute
from api.protocols.gcs.buckets import Bucket, open_bucket
from api.protocols.gcs.callers import PACKAGE, PACKAGE_LIMIT_BYTES, StorageCaller, Uploader, find_bucket
from api.protocols.gcs.checksums import Checksums, checksums_in_headers
from api.protocols.gcs.objects import Preconditions, checksums_of_object, find_or_none, object_view
from api.protocols.gcs.requests import UploadCondition, body_bytes, demand_plain, total_bytes, url_of
from api.protocols.gcs.upload_limits import UploadLimit, UploadMeter, limit_of_objects
from api.protocols.kit.json_values import answer
from api.protocols.kit.streams import large_blocks
from api.quotas.storage import UploadCharge
from core.domain.errors import Forbidden, InvalidRequest, NotFound, PayloadTooLarge
from core.storage.tree import TreeEntry

router = APIRouter(route_class=StorageRoute, include_in_schema=False)

_HEAD_BYTES: Final = 64 * 2**10  # an object's metadata
UPLOAD: Final = "/upload/storage/v1/b/{bucket}/o"
_OPEN_LIMIT: Final = UploadLimit(
    PACKAGE_LIMIT_BYTES, f"Without a token at most {PACKAGE_LIMIT_BYTES // 2**20} MiB can be staged."
)
_Bucket = Annotated[str, Path(max_length=222)]
_PARTS_HEAD_BYTES: Final = 64 * 2**10  # of the metadata with all headers


@dataclass(frozen=True, slots=True)
class _UploadCall:
    """A request of an upload. ``caller``: ``None`` if it has no token."""

    request: Request
    caller: StorageCaller | None
    context: AppContext

    @property
    def limit(self) -> UploadLimit:
        return _OPEN_LIMIT if self.caller is None else limit_of_objects(self.context.settings.object_limit_bytes)

    def find(self, target: upload_sessions.UploadTarget) -> tuple[Bucket, UploadMeter]:
        """The bucket of the upload, and the meter of its bytes. Raises ``NotFound``, ``Forbidden``."""
        audit.note_object("object", f"{target.bucket}/{target.name}")
        if self.caller is not None:
            bucket = find_bucket(self.context, self.caller, target.bucket, writes=True)
        elif PACKAGE.fullmatch(target.name):
            bucket = open_bucket(self.context, target.bucket)
        else:
            raise Forbidden(
                "Without a token only packages can be staged, as Vertex AI's SDK names them; `trainmaster vertex-env` "
                "tells how to send one."
            )
        project = bucket.project_of(target.name)
        audit.note_project(None, project)
        is_refused = self.caller is None or isinstance(self.caller, Caller)  # a running job goes on
        charge = None if project is None else UploadCharge(self.context, project, is_refused=is_refused)
        return bucket, UploadMeter(bucket, self.limit, charge)

    async def open(self, target: upload_sessions.UploadTarget) -> tuple[Bucket, UploadMeter]:
        return await run_in_threadpool(self.find, target)

    def target_of(self, target: upload_sessions.UploadTarget, total: int | None = None) -> upload_sessions.UploadTarget:
        """The target with its total size. Callers without a token may only create objects, not replace them."""
        if self.caller is not None:
            return replace(target, total_bytes=total)
        return upload_sessions.UploadTarget(
            target.bucket, target.name, target.crc32c, target.md5, match=0, total_bytes=total, is_open=True
        )

    def view(self, bucket: Bucket, name: str, entry: TreeEntry, sums: Checksums | None) -> Response:
        return answer(object_view(bucket, name, entry, sums, url=url_of(self.request)))


async def _upload_call(request: Request, caller: Uploader, context: AppContextDep) -> _UploadCall:
    return _UploadCall(request, caller, context)


_CallDep = Annotated[_UploadCall, Depends(_upload_call)]


@router.post(UPLOAD)
async def upload(
    bucket: _Bucket,
    call: _CallDep,
    condition: UploadCondition,
    uploadType: str = "",  # noqa: N803 (as Google names it)
    name: str = "",
    upload_id: str = "",
) -> Response:
    """An upload in one request (`media`, `multipart`), or the start of a resumable session."""
    demand_plain(call.request)
    if upload_id:  # some clients send chunks by POST
        return await _go_on(call, bucket, upload_id)
    match uploadType:
        case "resumable":
            metadata = _json(await _small_body(call.request))
            target = upload_sessions.upload_target(bucket, name, condition, metadata)
            return await _begin(call, call.target_of(target, total_bytes(call.request)))
        case "multipart":
            return await _multipart(call, bucket, name, condition)
        case "media":
            target = upload_sessions.upload_target(bucket, name, condition, {})
            return await _insert(call, target, call.request.stream(), body_bytes(call.request))
    raise InvalidRequest("uploadType is media, multipart or resumable.", field="uploadType")


@router.put(UPLOAD)
async def go_on(bucket: _Bucket, call: _CallDep, upload_id: str, name: str = "") -> Response:
    del name  # the session has it
    demand_plain(call.request)
    return await _go_on(call, bucket, upload_id)


@router.delete(UPLOAD)
def give_up(bucket: _Bucket, call: _CallDep, upload_id: str, name: str = "") -> Response:
    del name
    target = upload_sessions.read_session(upload_id, bucket, call.context.key)
    storage, meter = call.find(target)
    with upload_sessions.ResumedUpload(storage, target, upload_sessions.Chunk(is_status_query=True), meter) as session:
        session.drop()
    return Response(status_code=499)  # as Cloud Storage answers


async def _begin(call: _UploadCall, target: upload_sessions.UploadTarget) -> Response:
    bucket, meter = await call.open(target)
    await run_in_threadpool(meter.announce, target.total_bytes)
    context = call.context
    upload_id = await run_in_threadpool(upload_sessions.begin, bucket, target, context.key, context.clock().timestamp())
    address = f"{url_of(call.request)}/upload/storage/v1/b/{target.bucket}/o"
    location = f"{address}?uploadType=resumable&upload_id={upload_id}"
    return Response(None, 200, {"Location": location, "X-GUploader-UploadID": upload_id})


async def _go_on(call: _UploadCall, bucket: str, upload_id: str) -> Response:
    request = call.request
    target = upload_sessions.read_session(upload_id, bucket, call.context.key)
    if call.caller is None and not target.is_open:
        raise Forbidden("This upload was begun with a token; send it with each chunk.")
    storage, meter = await call.open(target)
    chunk = upload_sessions.parse_content_range(request.headers.get("content-range"))
    expected = checksums_in_headers(request.headers)
    try:
        sums: Checksums | None
        async with contextmanager_in_threadpool(
            upload_sessions.ResumedUpload(storage, target, chunk, meter)
        ) as session:
            await run_in_threadpool(session.announce, body_bytes(request))
            async for data in large_blocks(request.stream()):
                await run_in_threadpool(session.write, data)
            await run_in_threadpool(session.demand_announced)
            if not session.is_whole():
                size = session.size_bytes
                return Response(None, 308, {"Range": f"bytes=0-{size - 1}"} if size else {})
            entry, sums = await run_in_threadpool(session.finish, expected)
    except NotFound:
        # The response to the last chunk may have been lost: then the object exists.
        entry_now = await run_in_threadpool(find_or_none, storage, target.name)
        if entry_now is None or (chunk.total is not None and entry_now.size_bytes != chunk.total):
            raise
        entry, sums = entry_now, await run_in_threadpool(checksums_of_object, storage, target.name)
    return call.view(storage, target.name, entry, sums)


async def _multipart(call: _UploadCall, bucket: str, name: str, condition: Preconditions) -> Response:
    body = _MultipartParser(call.request.headers.get("content-type", ""))
    stream = call.request.stream()
    first = b""
    async for block in stream:
        first = body.feed(block)
        if body.metadata is not None:
            break
    if body.metadata is None:
        body.end()
    target = call.target_of(upload_sessions.upload_target(bucket, name, condition, body.metadata))

    async def data() -> AsyncIterator[bytes]:
        yield first
        async for block in stream:
            yield body.feed(block)
        yield body.end()

    return await _insert(call, target, data(), body.least_bytes(body_bytes(call.request)))


async def _insert(
    call: _UploadCall, target: upload_sessions.UploadTarget, data: AsyncIterator[bytes], size_bytes: int | None
) -> Response:
    """``size_bytes``: lower bound of the object's size, if known."""
    bucket, meter = await call.open(target)
    await run_in_threadpool(meter.announce, size_bytes)
    if target.name.endswith("/"):
        async for block in data:
            if block:
                raise InvalidRequest(
                    "name: an object whose name ends in a slash is a folder here, and holds nothing.", field="name"
                )
        entry = await run_in_threadpool(upload_sessions.make_folder, bucket, target.name)
        return call.view(bucket, target.name, entry, None)
    expected = checksums_in_headers(call.request.headers)
    async with contextmanager_in_threadpool(
        upload := upload_sessions.SingleRequestUpload(bucket, target, expected, meter)
    ):
        async for block in large_blocks(data):
            await run_in_threadpool(upload.write, block)
    entry = await run_in_threadpool(upload.entry)
    return call.view(bucket, target.name, entry, upload.sums)


async def _small_body(request: Request) -> bytes:
    body = b""
    async for block in request.stream():
        body += block
        if len(body) > _HEAD_BYTES:
            raise PayloadTooLarge("The object's metadata is too large.")
    return body


def _json(body: bytes) -> Any:
    try:
        return orjson.loads(body) if body.strip() else {}
    except orjson.JSONDecodeError as error:
        raise InvalidRequest("The object's metadata is not JSON.", field="body") from error


class _MultipartParser:
    """Streaming parser: ``metadata`` is set once ``feed`` has read the first part."""

    def __init__(self, content_type: str) -> None:
        header = Message()
        header["content-type"] = content_type
        boundary = header.get_param("boundary")
        if header.get_content_type() != "multipart/related" or not isinstance(boundary, str) or not boundary:
            raise InvalidRequest("A multipart upload is multipart/related, with a boundary.", field="content-type")
        self._mark = b"--" + boundary.encode()
        self._pending = b""
        self._fed_bytes = 0
        self._head_bytes = 0
        self.metadata: Any = None

    def least_bytes(self, body_bytes: int | None) -> int | None:
        """Lower bound of the object's size, given the body's; needs ``metadata``."""
        return None if body_bytes is None else max(0, body_bytes - self._head_bytes - self._tail_bytes)

    @property
    def _tail_bytes(self) -> int:
        """Upper bound: line break, boundary, two dashes, line break, trailing blanks."""
        return len(self._mark) + 64

    def feed(self, data: bytes) -> bytes:
        """The object's bytes that cannot be part of the final boundary; :meth:`end` returns the rest."""
        self._pending += data
        self._fed_bytes += len(data)
        if self.metadata is None and not self._read_head():
            return b""
        tail = self._tail_bytes
        sure, self._pending = self._pending[:-tail], self._pending[-tail:]
        return sure

    def end(self) -> bytes:
        """The object's last bytes. Raises ``InvalidRequest`` if the body broke off."""
        match = re.search(rb"\r?\n" + re.escape(self._mark) + rb"--\s*\Z", self._pending)
        if self.metadata is None or match is None:
            raise InvalidRequest("The multipart body broke off, or is not of two parts.", field="body")
        return self._pending[: match.start()]

    def _read_head(self) -> bool:
        """Whether both parts' headers and the metadata were received."""
        first = self._pending.find(self._mark)
        after = self._pending.find(b"\n" + self._mark, first + len(self._mark)) if first >= 0 else -1
        blank = _blank(self._pending, after + 1 + len(self._mark)) if after >= 0 else None
        if blank is None:
            if len(self._pending) > _PARTS_HEAD_BYTES:
                raise InvalidRequest("The multipart body has no two parts, or its metadata is too long.", field="body")
            return False
        begin = _blank(self._pending[:after], first)
        try:
            self.metadata = orjson.loads(self._pending[begin:after].strip() or b"{}")
        except orjson.JSONDecodeError as error:
            raise InvalidRequest("The first part, the object's metadata, is not JSON.", field="body") from error
        self._pending = self._pending[blank:]
        self._head_bytes = self._fed_bytes - len(self._pending)
        return True


def _blank(data: bytes, start: int) -> int | None:
    """Position after the next empty line."""
    match = re.compile(rb"\r?\n\r?\n").search(data, start)
    return None if match is None else match.end()
