"""Cloud Storage's JSON API over the volumes, as far as Google's clients use it for staging and results.

https://cloud.google.com/storage/docs/json_api/v1. Not in our own description: it is Google's, and versioned by it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import contextmanager_in_threadpool
from starlette.concurrency import run_in_threadpool

from api.auth import Caller
from api.gcs import uploads
from api.gcs.answers import NotServed, StorageRoute, answer
from api.gcs.buckets import Bucket, bucket_names, bucket_view, find_bucket, open_bucket
from api.gcs.callers import PACKAGE, PACKAGE_LIMIT_BYTES, StorageReader, StorageWriter, Uploader
from api.gcs.checksums import Checksums
from api.gcs.listing import PAGE_LIMIT, list_objects, read_token
from api.gcs.listing import Query as ListQuery
from api.gcs.multipart import Multipart
from api.gcs.objects import delete_object, find_object, find_or_none, object_view, open_object, sums_of, sums_of_open
from api.ranges import OpenFileResponse
from api.work import Platform, PlatformDep
from core.domain.errors import Forbidden, InvalidRequest, NotFound, PayloadTooLarge

router = APIRouter(route_class=StorageRoute, include_in_schema=False)

_PIECE: Final = 2**20  # bytes written at once
_HEAD_BYTES: Final = 64 * 2**10  # an object's metadata
BUCKETS: Final = "/storage/v1/b"
UPLOAD: Final = "/upload/storage/v1/b/{bucket}/o"
_Bucket = Annotated[str, Path(max_length=222)]
_Object = Annotated[str, Path(max_length=4096)]


# --- buckets ---------------------------------------------------------------------------------------------------------


@router.get(BUCKETS)
def list_buckets(caller: StorageReader, platform: PlatformDep) -> Response:
    return answer({"kind": "storage#buckets", "items": [bucket_view(name) for name in bucket_names(platform, caller)]})


@router.post(BUCKETS)
def create_bucket(caller: StorageWriter) -> Response:  # noqa: ARG001 (who may ask)
    raise Forbidden(
        "Buckets are volumes here, which an administrator registers (`trainmaster volumes add`), and the projects' own folders; "
        "name one of them, as in staging_bucket='gs://data'. `trainmaster volumes` lists them."
    )


@router.get(f"{BUCKETS}/{{bucket}}")
def get_bucket(bucket: _Bucket, caller: StorageReader, platform: PlatformDep) -> Response:
    return answer(bucket_view(find_bucket(platform, caller, bucket).name))


# --- objects ---------------------------------------------------------------------------------------------------------


@router.get(f"{BUCKETS}/{{bucket}}/o")
def list_of_bucket(
    request: Request,
    bucket: _Bucket,
    caller: StorageReader,
    platform: PlatformDep,
    *,
    prefix: str = "",
    delimiter: str = "",
    startOffset: str = "",  # noqa: N803 (as Google names it)
    endOffset: str = "",  # noqa: N803
    pageToken: str = "",  # noqa: N803
    maxResults: Annotated[int, Query(ge=1)] = PAGE_LIMIT,  # noqa: N803
) -> Response:
    if unknown := [name for name in ("matchGlob", "softDeleted") if name in request.query_params]:
        raise NotServed(f"{unknown[0]} is not served; use prefix and delimiter.")
    found = find_bucket(platform, caller, bucket)
    query = ListQuery(prefix, delimiter, startOffset, endOffset, read_token(pageToken), min(maxResults, PAGE_LIMIT))
    page = list_objects(found, query)
    items = [object_view(found, name, entry, None, url=_url(request)) for name, entry in page.items]
    return answer(
        {
            "kind": "storage#objects",
            **({"items": items} if items else {}),
            **({"prefixes": page.prefixes} if page.prefixes else {}),
            **({"nextPageToken": page.token} if page.token else {}),
        }
    )


@router.get(f"{BUCKETS}/{{bucket}}/o/{{name:path}}")
@router.head(f"{BUCKETS}/{{bucket}}/o/{{name:path}}")
def get_object(
    request: Request, bucket: _Bucket, name: _Object, caller: StorageReader, platform: PlatformDep, alt: str = "json"
) -> Response:
    found = find_bucket(platform, caller, bucket)
    uploads.condition_of(request.query_params).demand(entry := find_object(found, name))
    if alt == "media":
        return _media(found, name)
    sums = None if entry.is_dir else sums_of(found, name)
    return answer(object_view(found, name, entry, sums, url=_url(request)))


@router.get("/download/storage/v1/b/{bucket}/o/{name:path}")
@router.head("/download/storage/v1/b/{bucket}/o/{name:path}")
def download(
    request: Request, bucket: _Bucket, name: _Object, caller: StorageReader, platform: PlatformDep
) -> Response:
    """The bytes. `Range` is honoured."""
    found = find_bucket(platform, caller, bucket)
    uploads.condition_of(request.query_params).demand(find_object(found, name))
    return _media(found, name)


@router.delete(f"{BUCKETS}/{{bucket}}/o/{{name:path}}")
def delete(request: Request, bucket: _Bucket, name: _Object, caller: StorageWriter, platform: PlatformDep) -> Response:
    found = find_bucket(platform, caller, bucket, writes=True)
    delete_object(found, name, uploads.condition_of(request.query_params))
    return Response(status_code=204)


def _media(bucket: Bucket, name: str) -> Response:
    fd = open_object(bucket, name)
    try:
        sums = sums_of_open(fd)
    except OSError:
        os.close(fd)
        raise
    told = {} if sums is None else {"x-goog-hash": f"crc32c={sums.crc32c},md5={sums.md5}"}
    return OpenFileResponse(fd, media_type="application/octet-stream", headers=told)


# --- uploads ---------------------------------------------------------------------------------------------------------


@router.post(UPLOAD)
async def upload(
    request: Request,
    bucket: _Bucket,
    caller: Uploader,
    platform: PlatformDep,
    uploadType: str = "",  # noqa: N803
) -> Response:
    """In one request (`media`, `multipart`), or the beginning of a session (`resumable`)."""
    if upload_id := request.query_params.get("upload_id"):  # some clients send pieces so
        return await _go_on(request, bucket, caller, platform, upload_id)
    match uploadType:
        case "resumable":
            return await _begin(request, bucket, caller, platform)
        case "multipart":
            return await _multipart(request, bucket, caller, platform)
        case "media":
            wanted = uploads.wanted_of(bucket, request.query_params, {})
            return await _insert(request, await _open(platform, caller, wanted), wanted, request.stream())
    raise InvalidRequest("uploadType is media, multipart or resumable.", field="uploadType")


@router.put(UPLOAD)
async def go_on(request: Request, bucket: _Bucket, caller: Uploader, platform: PlatformDep, upload_id: str) -> Response:
    return await _go_on(request, bucket, caller, platform, upload_id)


@router.delete(UPLOAD)
def give_up(bucket: _Bucket, caller: Uploader, platform: PlatformDep, upload_id: str) -> Response:
    wanted = uploads.read_session(upload_id, bucket, platform.key)
    with uploads.Continuation(_bucket_for(platform, caller, wanted), wanted, uploads.Piece(asks_only=True)) as session:
        session.drop()
    return Response(status_code=499)  # as Cloud Storage answers


def _bucket_for(platform: Platform, caller: Caller | None, wanted: uploads.Wanted) -> Bucket:
    if caller is not None:
        return find_bucket(platform, caller, wanted.bucket, writes=True)
    if not PACKAGE.fullmatch(wanted.name):
        raise Forbidden(
            "Without a token only packages can be staged, as Vertex AI's SDK names them; `trainmaster vertex-env` tells how "
            "to send one."
        )
    return open_bucket(platform, wanted.bucket)


async def _open(platform: Platform, caller: Caller | None, wanted: uploads.Wanted) -> Bucket:
    return await run_in_threadpool(_bucket_for, platform, caller, wanted)


def _for(caller: Caller | None, wanted: uploads.Wanted) -> uploads.Wanted:
    """Who has no token replaces nothing."""
    return (
        wanted
        if caller is not None
        else uploads.Wanted(wanted.bucket, wanted.name, wanted.crc32c, wanted.md5, match=0, is_open=True)
    )


async def _begin(request: Request, bucket: str, caller: Caller | None, platform: Platform) -> Response:
    body = await _small_body(request)
    wanted = _for(caller, uploads.wanted_of(bucket, request.query_params, _json(body)))
    found = await _open(platform, caller, wanted)
    upload_id = await run_in_threadpool(uploads.begin, found, wanted, platform.key, platform.clock().timestamp())
    place = f"{_url(request)}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={upload_id}"
    return Response(None, 200, {"Location": place, "X-GUploader-UploadID": upload_id})


async def _go_on(request: Request, bucket: str, caller: Caller | None, platform: Platform, upload_id: str) -> Response:
    wanted = uploads.read_session(upload_id, bucket, platform.key)
    if caller is None and not wanted.is_open:
        raise Forbidden("This upload was begun with a token; send it with each piece.")
    found = await _open(platform, caller, wanted)
    piece = uploads.piece_of(request.headers.get("content-range"))
    try:
        sums: Checksums | None
        async with contextmanager_in_threadpool(uploads.Continuation(found, wanted, piece)) as session:
            async for data in _pieces(_bounded(request.stream(), caller, session.size_bytes)):
                await run_in_threadpool(session.write, data)
            if not session.is_whole():
                size = session.size_bytes
                return Response(None, 308, {"Range": f"bytes=0-{size - 1}"} if size else {})
            entry, sums = await run_in_threadpool(session.finish)
    except NotFound:
        # The answer to the last piece may have been lost: the object is there then.
        entry_now = await run_in_threadpool(find_or_none, found, wanted.name)
        if entry_now is None or (piece.total is not None and entry_now.size_bytes != piece.total):
            raise
        entry, sums = entry_now, await run_in_threadpool(sums_of, found, wanted.name)
    return answer(object_view(found, wanted.name, entry, sums, url=_url(request)))


async def _multipart(request: Request, bucket: str, caller: Caller | None, platform: Platform) -> Response:
    body = Multipart(request.headers.get("content-type", ""))
    stream = _bounded(request.stream(), caller)
    first = b""
    async for block in stream:
        first = body.feed(block)
        if body.metadata is not None:
            break
    if body.metadata is None:
        body.end()
    wanted = _for(caller, uploads.wanted_of(bucket, request.query_params, body.metadata))
    found = await _open(platform, caller, wanted)

    async def data() -> AsyncIterator[bytes]:
        yield first
        async for block in stream:
            yield body.feed(block)
        yield body.end()

    return await _insert(request, found, wanted, data())


async def _insert(request: Request, bucket: Bucket, wanted: uploads.Wanted, data: AsyncIterator[bytes]) -> Response:
    if wanted.name.endswith("/"):
        async for _ in data:
            pass
        entry = await run_in_threadpool(uploads.make_folder, bucket, wanted.name)
        return answer(object_view(bucket, wanted.name, entry, None, url=_url(request)))
    async with contextmanager_in_threadpool(upload := uploads.Insertion(bucket, wanted)):
        async for block in _pieces(data):
            await run_in_threadpool(upload.write, block)
    entry = await run_in_threadpool(upload.entry)
    return answer(object_view(bucket, wanted.name, entry, upload.sums, url=_url(request)))


async def _pieces(data: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same in blocks that are worth a step to another thread."""
    pending = bytearray()
    async for block in data:
        pending += block
        if len(pending) >= _PIECE:
            yield bytes(pending)
            pending.clear()
    if pending:
        yield bytes(pending)


async def _bounded(data: AsyncIterator[bytes], caller: Caller | None, size: int = 0) -> AsyncIterator[bytes]:
    """``size``: what came before."""
    async for block in data:
        size += len(block)
        if caller is None and size > PACKAGE_LIMIT_BYTES:
            raise PayloadTooLarge(f"Without a token at most {PACKAGE_LIMIT_BYTES // 2**20} MiB can be staged.")
        yield block


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


def _url(request: Request) -> str:
    """Where the client reached us: sessions go on there."""
    return str(request.base_url).rstrip("/")


@router.api_route(f"{BUCKETS}/{{rest:path}}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
def nothing_here(rest: str, caller: StorageReader) -> Response:  # noqa: ARG001 (who may ask)
    raise NotServed(
        f"Volumes have no {rest.rpartition('/')[2][:50]!r}; served are buckets, and listing, reading, uploading and deleting objects."
    )
