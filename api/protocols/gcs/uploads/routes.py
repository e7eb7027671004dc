"""Uploads: in one request, whose ``multipart/related`` body is parsed here (RFC 2387), or resumable in chunks."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from email.message import Message
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Path, Request, Response
from fastapi.concurrency import contextmanager_in_threadpool
from starlette.concurrency import run_in_threadpool

from api.app.unit_of_work import AppContext, AppContextDep
from api.protocols.gcs.answers import StorageRoute
from api.protocols.gcs.buckets import Bucket, open_bucket
from api.protocols.gcs.callers import PACKAGE, PACKAGE_LIMIT_BYTES, StorageCaller, Uploader, find_bucket
from api.protocols.gcs.checksums import Checksums, checksums_in_headers
from api.protocols.gcs.objects import Preconditions, checksums_of_object, find_or_none, object_view
from api.protocols.gcs.requests import UploadCondition, body_bytes, demand_plain, total_bytes, url_of
from api.protocols.gcs.upload_limits import UploadLimit, UploadMeter, limit_of_objects
from api.protocols.gcs.uploads import sessions
from api.protocols.kit.json_values import answer
from api.protocols.kit.streams import large_blocks
from core.domain.errors import Forbidden, InvalidRequest, NotFound, PayloadTooLarge

router = APIRouter(route_class=StorageRoute, include_in_schema=False)

_HEAD_BYTES: Final = 64 * 2**10  # an object's metadata
UPLOAD: Final = "/upload/storage/v1/b/{bucket}/o"
_OPEN_LIMIT: Final = UploadLimit(
    PACKAGE_LIMIT_BYTES, f"Without a token at most {PACKAGE_LIMIT_BYTES // 2**20} MiB can be staged."
)
_Bucket = Annotated[str, Path(max_length=222)]
_PARTS_HEAD_BYTES: Final = 64 * 2**10  # of the metadata with all headers


@router.post(UPLOAD)
async def upload(
    request: Request,
    bucket: _Bucket,
    caller: Uploader,
    context: AppContextDep,
    condition: UploadCondition,
    uploadType: str = "",  # noqa: N803 (as Google names it)
    name: str = "",
    upload_id: str = "",
) -> Response:
    """An upload in one request (`media`, `multipart`), or the start of a resumable session."""
    demand_plain(request)
    if upload_id:  # some clients send chunks by POST
        return await _go_on(request, bucket, caller, context, upload_id)
    match uploadType:
        case "resumable":
            metadata = _json(await _small_body(request))
            target = sessions.upload_target(bucket, name, condition, metadata)
            return await _begin(request, _for(caller, target, total_bytes(request)), caller, context)
        case "multipart":
            return await _multipart(request, bucket, name, condition, caller, context)
        case "media":
            target = sessions.upload_target(bucket, name, condition, {})
            storage = await _open(context, caller, target)
            meter = UploadMeter(storage, _limit(context, caller))
            return await _insert(request, storage, target, meter, request.stream(), body_bytes(request))
    raise InvalidRequest("uploadType is media, multipart or resumable.", field="uploadType")


@router.put(UPLOAD)
async def go_on(
    request: Request, bucket: _Bucket, caller: Uploader, context: AppContextDep, upload_id: str, name: str = ""
) -> Response:
    del name  # the session has it
    demand_plain(request)
    return await _go_on(request, bucket, caller, context, upload_id)


@router.delete(UPLOAD)
def give_up(bucket: _Bucket, caller: Uploader, context: AppContextDep, upload_id: str, name: str = "") -> Response:
    del name
    target = sessions.read_session(upload_id, bucket, context.key)
    storage = _bucket_for(context, caller, target)
    chunk, meter = sessions.Chunk(is_status_query=True), UploadMeter(storage, _limit(context, caller))
    with sessions.ResumedUpload(storage, target, chunk, meter) as session:
        session.drop()
    return Response(status_code=499)  # as Cloud Storage answers


def _limit(context: AppContext, caller: StorageCaller | None) -> UploadLimit:
    return _OPEN_LIMIT if caller is None else limit_of_objects(context.settings.object_limit_bytes)


def _bucket_for(context: AppContext, caller: StorageCaller | None, target: sessions.UploadTarget) -> Bucket:
    if caller is not None:
        return find_bucket(context, caller, target.bucket, writes=True)
    if not PACKAGE.fullmatch(target.name):
        raise Forbidden(
            "Without a token only packages can be staged, as Vertex AI's SDK names them; `trainmaster vertex-env` "
            "tells how to send one."
        )
    return open_bucket(context, target.bucket)


async def _open(context: AppContext, caller: StorageCaller | None, target: sessions.UploadTarget) -> Bucket:
    return await run_in_threadpool(_bucket_for, context, caller, target)


def _for(
    caller: StorageCaller | None, target: sessions.UploadTarget, total: int | None = None
) -> sessions.UploadTarget:
    """The target with its total size. Callers without a token may only create objects, not replace them."""
    if caller is not None:
        return replace(target, total_bytes=total)
    return sessions.UploadTarget(
        target.bucket, target.name, target.crc32c, target.md5, match=0, total_bytes=total, is_open=True
    )


async def _begin(
    request: Request, target: sessions.UploadTarget, caller: StorageCaller | None, context: AppContext
) -> Response:
    bucket = await _open(context, caller, target)
    await run_in_threadpool(UploadMeter(bucket, _limit(context, caller)).announce, target.total_bytes)
    upload_id = await run_in_threadpool(sessions.begin, bucket, target, context.key, context.clock().timestamp())
    place = f"{url_of(request)}/upload/storage/v1/b/{target.bucket}/o?uploadType=resumable&upload_id={upload_id}"
    return Response(None, 200, {"Location": place, "X-GUploader-UploadID": upload_id})


async def _go_on(
    request: Request, bucket: str, caller: StorageCaller | None, context: AppContext, upload_id: str
) -> Response:
    target = sessions.read_session(upload_id, bucket, context.key)
    if caller is None and not target.is_open:
        raise Forbidden("This upload was begun with a token; send it with each chunk.")
    storage = await _open(context, caller, target)
    chunk = sessions.parse_content_range(request.headers.get("content-range"))
    expected = checksums_in_headers(request.headers)
    meter = UploadMeter(storage, _limit(context, caller))
    try:
        sums: Checksums | None
        async with contextmanager_in_threadpool(sessions.ResumedUpload(storage, target, chunk, meter)) as session:
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
    return answer(object_view(storage, target.name, entry, sums, url=url_of(request)))


async def _multipart(
    request: Request,
    bucket: str,
    name: str,
    condition: Preconditions,
    caller: StorageCaller | None,
    context: AppContext,
) -> Response:
    body = _MultipartParser(request.headers.get("content-type", ""))
    stream = request.stream()
    first = b""
    async for block in stream:
        first = body.feed(block)
        if body.metadata is not None:
            break
    if body.metadata is None:
        body.end()
    target = _for(caller, sessions.upload_target(bucket, name, condition, body.metadata))
    storage = await _open(context, caller, target)
    meter = UploadMeter(storage, _limit(context, caller))

    async def data() -> AsyncIterator[bytes]:
        yield first
        async for block in stream:
            yield body.feed(block)
        yield body.end()

    return await _insert(request, storage, target, meter, data(), body.least_bytes(body_bytes(request)))


async def _insert(
    request: Request,
    bucket: Bucket,
    target: sessions.UploadTarget,
    meter: UploadMeter,
    data: AsyncIterator[bytes],
    size_bytes: int | None,
) -> Response:
    """``size_bytes``: lower bound of the object's size, if known."""
    await run_in_threadpool(meter.announce, size_bytes)
    if target.name.endswith("/"):
        async for block in data:
            if block:
                raise InvalidRequest(
                    "name: an object whose name ends in a slash is a folder here, and holds nothing.", field="name"
                )
        entry = await run_in_threadpool(sessions.make_folder, bucket, target.name)
        return answer(object_view(bucket, target.name, entry, None, url=url_of(request)))
    expected = checksums_in_headers(request.headers)
    async with contextmanager_in_threadpool(upload := sessions.SingleRequestUpload(bucket, target, expected, meter)):
        async for block in large_blocks(data):
            await run_in_threadpool(upload.write, block)
    entry = await run_in_threadpool(upload.entry)
    return answer(object_view(bucket, target.name, entry, upload.sums, url=url_of(request)))


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
