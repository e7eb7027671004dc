"""Code archives: content-addressed, uploaded in chunks that can be resumed."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from trainmaster.wire.jobs import ArchiveView

from api.app.unit_of_work import AppContextDep
from api.archives import service
from api.auth import Caller, Reader, Writer
from api.http.routing import new_router
from core.storage.archives import ArchiveStore, ArchiveUpload

router = new_router("archives", "/archives")

_PIECE: Final = 2**20  # bytes written to the disk at once; an interrupted upload resumes after the last piece
_DIGEST: Final = r"^sha256:[0-9a-f]{64}$"
DigestPath = Annotated[str, Path(pattern=_DIGEST, description="sha256:<hex> of the .tar.gz file.")]


@router.post(
    "",
    operation_id="start_archive",
    summary="Begin or resume an upload",
    status_code=201,
    responses={200: {"model": ArchiveView, "description": "The archive is already complete."}},
)
def start_archive(
    response: Response,
    caller: Writer,
    context: AppContextDep,
    digest: Annotated[str, Query(pattern=_DIGEST)],
    size: Annotated[int, Query(ge=1, le=2**62)],
) -> ArchiveView:
    """`received_bytes` is the offset to send from. An archive that any user has uploaded before is complete at once."""
    upload = service.announce(context, caller, digest, size)
    if upload.is_complete:
        response.status_code = 200
    return service.view_of(upload)


@router.put(
    "/{digest}",
    operation_id="append_archive",
    summary="Send the next bytes",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def append_archive(
    request: Request,
    digest: DigestPath,
    caller: Writer,
    context: AppContextDep,
    offset: Annotated[int, Query(ge=0, le=2**62)],
) -> ArchiveView:
    """Append the raw body at `offset`. After an interruption, get the archive for the offset to resume from.

    409 when `offset` is not the number of bytes received; the problem's detail has that number. The digest is verified
    when the archive is complete.
    """
    store = service.store_of(context)
    upload: ArchiveUpload | None = None
    pending = bytearray()
    try:
        async for block in request.stream():
            pending += block
            while len(pending) >= _PIECE:
                upload = await _put(store, caller, digest, _end(upload, offset), bytes(pending[:_PIECE]))
                del pending[:_PIECE]
    except ClientDisconnect:
        if pending:
            await _put(store, caller, digest, _end(upload, offset), bytes(pending))
        raise
    if pending or upload is None:
        upload = await _put(store, caller, digest, _end(upload, offset), bytes(pending))
    if upload.is_complete:
        await run_in_threadpool(service.note_complete, context, caller, upload)
    return service.view_of(upload)


def _end(upload: ArchiveUpload | None, offset: int) -> int:
    return offset if upload is None else upload.received_bytes


async def _put(store: ArchiveStore, caller: Caller, digest: str, offset: int, piece: bytes) -> ArchiveUpload:
    return await run_in_threadpool(store.append, digest, caller.user_id, offset=offset, chunk=piece)


@router.get("/{digest}", operation_id="get_archive", summary="An archive and its upload progress")
def get_archive(digest: DigestPath, caller: Reader, context: AppContextDep) -> ArchiveView:
    """`received_bytes` counts what the caller has uploaded."""
    return service.view_of(service.store_of(context).look(digest, caller.user_id))
