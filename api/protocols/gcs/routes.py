"""Cloud Storage's JSON API over volumes, as far as Google's clients use it for staging and results.

https://cloud.google.com/storage/docs/json_api/v1. Not part of our OpenAPI document: Google defines and versions it.
"""

from __future__ import annotations

import os
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request, Response

from api.app.unit_of_work import AppContextDep
from api.http.ranges import OpenFileResponse, parse_range
from api.protocols.gcs import batch, upload_routes
from api.protocols.gcs.answers import RefusingRoute, StorageRoute
from api.protocols.gcs.buckets import Bucket, bucket_view
from api.protocols.gcs.callers import StorageReader, StorageWriter, bucket_names, find_bucket
from api.protocols.gcs.listing import PAGE_LIMIT, ListOptions, list_objects, name_in_token
from api.protocols.gcs.objects import (
    METAGENERATION,
    checksums_of_object,
    checksums_of_open_file,
    delete_object,
    find_generation,
    generation_of,
    object_view,
    open_object,
)
from api.protocols.gcs.requests import BucketCondition, ObjectCondition, demand_etag, url_of
from api.protocols.kit.errors import NotServed
from api.protocols.kit.json_values import answer, non_empty
from api.protocols.kit.paging import page_token
from core.domain.errors import Forbidden, RangeNotSatisfiable
from core.storage.tree import TreeEntry

router = APIRouter(route_class=StorageRoute, include_in_schema=False)
_refusing = APIRouter(route_class=RefusingRoute, include_in_schema=False)

_BUCKETS: Final = "/storage/v1/b"
_Bucket = Annotated[str, Path(max_length=222)]
_Object = Annotated[str, Path(max_length=4096)]
_Limit = Annotated[int, Query(ge=1)]
_ALL: Final = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_ADVICE: Final = {
    "acl": "who may use a bucket is told by projects and their members",
    "defaultObjectAcl": "who may use a bucket is told by projects and their members",
    "iam": "who may use a bucket is told by projects and their members",
    "hmacKeys": "clients send a token of the platform (`trainmaster token create`)",
    "serviceAccount": "clients send a token of the platform (`trainmaster token create`)",
    "notificationConfigs": "the platform's own events tell of jobs",
    "channels": "list the objects again instead",
    "watch": "list the objects again instead",
    "compose": "read the objects and upload one",
    "copyTo": "read the object and upload it",
    "rewriteTo": "read the object and upload it",
    "moveTo": "read the object, upload it and delete the first",
    "restore": "what is deleted is gone",
    "folders": "folders are made as objects are, and go with them",
    "managedFolders": "folders are made as objects are, and go with them",
}


# --- buckets ---------------------------------------------------------------------------------------------------------


@router.get(_BUCKETS)
def list_buckets(
    caller: StorageReader,
    context: AppContextDep,
    prefix: str = "",
    pageToken: str = "",  # noqa: N803 (as Google names it)
    maxResults: _Limit = PAGE_LIMIT,  # noqa: N803
) -> Response:
    after = name_in_token(pageToken)
    names = sorted(name for name in bucket_names(context, caller) if name.startswith(prefix) and name > after)
    page = names[: min(maxResults, PAGE_LIMIT)]
    more = {"nextPageToken": page_token(page[-1])} if len(page) < len(names) else {}
    return answer({"kind": "storage#buckets", "items": [bucket_view(name) for name in page], **more})


@_refusing.post(_BUCKETS)
def create_bucket(caller: StorageWriter) -> Response:  # noqa: ARG001 (who may ask)
    raise Forbidden(
        "Buckets are volumes here, which an administrator registers (`trainmaster volumes add`), and the projects' own "
        "folders; name one of them, as in staging_bucket='gs://data'. `trainmaster volumes` lists them."
    )


@router.get(f"{_BUCKETS}/{{bucket}}")
def get_bucket(bucket: _Bucket, caller: StorageReader, context: AppContextDep, condition: BucketCondition) -> Response:
    storage = find_bucket(context, caller, bucket)
    condition.demand_bucket()
    return answer(bucket_view(storage.name))


# --- objects ---------------------------------------------------------------------------------------------------------


@router.get(f"{_BUCKETS}/{{bucket}}/o")
def list_of_bucket(
    request: Request,
    bucket: _Bucket,
    caller: StorageReader,
    context: AppContextDep,
    *,
    prefix: str = "",
    delimiter: str = "",
    startOffset: str = "",  # noqa: N803
    endOffset: str = "",  # noqa: N803
    pageToken: str = "",  # noqa: N803
    maxResults: _Limit = PAGE_LIMIT,  # noqa: N803
    versions: bool = False,
) -> Response:
    del versions  # without versioning both lists are the same
    storage = find_bucket(context, caller, bucket)
    query = ListOptions(
        prefix, delimiter, startOffset, endOffset, name_in_token(pageToken), min(maxResults, PAGE_LIMIT)
    )
    page = list_objects(storage, query)
    items = [object_view(storage, name, entry, None, url=url_of(request)) for name, entry in page.items]
    return answer(
        {
            "kind": "storage#objects",
            **non_empty({"items": items, "prefixes": page.prefixes, "nextPageToken": page.token}),
        }
    )


@router.get(f"{_BUCKETS}/{{bucket}}/o/{{name:path}}")
@router.head(f"{_BUCKETS}/{{bucket}}/o/{{name:path}}")
def get_object(
    request: Request,
    bucket: _Bucket,
    name: _Object,
    caller: StorageReader,
    context: AppContextDep,
    condition: ObjectCondition,
    alt: str = "json",
) -> Response:
    storage = find_bucket(context, caller, bucket)
    entry = find_generation(storage, name, condition.generation)
    condition.demand_read(entry)
    demand_etag(request.headers, entry)
    if alt == "media":
        return _media(request, storage, name)
    sums = None if entry.is_dir else checksums_of_object(storage, name)
    return answer(object_view(storage, name, entry, sums, url=url_of(request)))


@router.get("/download/storage/v1/b/{bucket}/o/{name:path}")
@router.head("/download/storage/v1/b/{bucket}/o/{name:path}")
def download(
    request: Request,
    bucket: _Bucket,
    name: _Object,
    caller: StorageReader,
    context: AppContextDep,
    condition: ObjectCondition,
) -> Response:
    """The bytes. `Range` is honoured."""
    return get_object(request, bucket, name, caller, context, condition, alt="media")


@router.delete(f"{_BUCKETS}/{{bucket}}/o/{{name:path}}")
def delete(
    bucket: _Bucket, name: _Object, caller: StorageWriter, context: AppContextDep, condition: ObjectCondition
) -> Response:
    delete_object(find_bucket(context, caller, bucket, writes=True), name, condition)
    return Response(status_code=204)


def _media(request: Request, bucket: Bucket, name: str) -> Response:
    fd = open_object(bucket, name)
    try:
        sums, status = checksums_of_open_file(fd), os.fstat(fd)
        _demand_range(request, status.st_size)
    except BaseException:
        os.close(fd)
        raise
    entry = TreeEntry(name, is_dir=False, size_bytes=status.st_size, mtime_ns=status.st_mtime_ns)
    headers = {
        "x-goog-generation": str(generation_of(entry)),
        "x-goog-metageneration": str(METAGENERATION),
        "x-goog-stored-content-length": str(status.st_size),
        "x-goog-stored-content-encoding": "identity",
        "x-goog-storage-class": "STANDARD",
        **({} if sums is None else {"x-goog-hash": f"crc32c={sums.crc32c},md5={sums.md5}"}),
    }
    return OpenFileResponse(fd, media_type="application/octet-stream", headers=headers)


def _demand_range(request: Request, size: int) -> None:
    """Raises ``RangeNotSatisfiable``, worded as Cloud Storage does: its clients detect the end by the text."""
    try:
        parse_range(request.headers.get("range", ""), size)
    except RangeNotSatisfiable:
        raise RangeNotSatisfiable(f"Requested range not satisfiable: the object has {size:,} bytes.") from None


# --- addresses without a counterpart here ---------------------------------------------------------------------------


@_refusing.api_route("/storage/v1/{rest:path}", methods=_ALL)
@_refusing.api_route("/upload/storage/v1/{rest:path}", methods=_ALL)
@_refusing.api_route("/download/storage/v1/{rest:path}", methods=_ALL)
@_refusing.api_route("/resumable/upload/storage/v1/{rest:path}", methods=_ALL)
@_refusing.api_route("/batch/{rest:path}", methods=_ALL)
def not_served(rest: str, caller: StorageReader) -> Response:  # noqa: ARG001 (who may ask)
    """501 with the feature's name."""
    raise NotServed(_sentence(rest))


def _sentence(rest: str) -> str:
    """``rest``: of the address, such as ``b/data/o/a%2Fb/acl`` or ``projects/x/hmacKeys``."""
    names = rest.split("/")
    noun = next((name for name in names if name in _ADVICE), None)
    if noun is not None:
        return f"{noun} is not served by this platform: {_ADVICE[noun]}."
    if names[0] == "b" and names[2:3] == ["o"]:  # its name may have slashes
        return "Changing an object where it lies is not served by this platform; read it and upload it again."
    return (
        f"{names[-1][:50]!r} is not served by this platform; buckets, and listing, reading, uploading and "
        "deleting objects are."
    )


router.include_router(upload_routes.router)
router.include_router(batch.router)
router.include_router(_refusing)  # last: the catch-all routes
