"""Code archives: content-addressed, uploaded in chunks that can be resumed; a row for each complete one."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Query, Request, Response
from sqlalchemy import select, update
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from trainmaster.wire.jobs import ArchiveView

from api.app import audit
from api.app.unit_of_work import AppContext, AppContextDep, UnitOfWork
from api.auth import Caller, Reader, Writer
from api.http.routing import new_router
from api.quotas.storage import charged_project
from core.db.engine import insert_into
from core.db.repositories.storage_usage import add_bytes
from core.db.tables import Archive
from core.storage.archives import ArchiveStore, ArchiveUpload


def archive_store(context: AppContext) -> ArchiveStore:
    return ArchiveStore(context.settings.archive_dir, limit_bytes=context.settings.archive_limit_bytes)


def announce_archive(
    context: AppContext, caller: Caller, digest: str, size_bytes: int, project: str | None = None
) -> ArchiveUpload:
    """Begin an upload, or find it complete. ``project``: see ``charged_project``.

    The row's ``used_at`` is written before the file is checked: the garbage collection of old archives, which deletes
    the row first, either sees the new time or has deleted the file by then.
    """
    store = archive_store(context)
    with context.write() as work:
        work.session.execute(update(Archive).where(Archive.digest == digest).values(used_at=work.now))
        project_id = None
        if not store.is_announced(digest, caller.user_id):
            project_id = charged_project(work.session, caller, project, size_bytes)
        upload = store.start(digest, caller.user_id, size_bytes=size_bytes)
        # Where the file of a complete archive was lost with its disk, no job may be submitted with it any more.
        _write_archive(work, caller, upload, project_id)
        if project_id is not None and not upload.is_complete:
            add_bytes(work.session, project_id, size_bytes, work.now)
    return upload


def register_archive(context: AppContext, caller: Caller, upload: ArchiveUpload) -> None:
    """Make the archive known to submissions. May be repeated."""
    with context.write() as work:
        _write_archive(work, caller, upload, None)


def _view_of(upload: ArchiveUpload) -> ArchiveView:
    return ArchiveView(
        digest=upload.digest,
        size_bytes=upload.size_bytes,
        received_bytes=upload.received_bytes,
        is_complete=upload.is_complete,
    )


def _write_archive(work: UnitOfWork, caller: Caller, upload: ArchiveUpload, project_id: str | None) -> None:
    """Write the row, unless it says so already. ``project_id``: it counts against, unless it counts against another."""
    query = select(Archive.is_complete, Archive.project_id).where(Archive.digest == upload.digest)
    known = work.session.execute(query).one_or_none()
    if known is not None and known.is_complete and upload.is_complete:
        return
    values = {
        "size_bytes": upload.size_bytes,
        "received_bytes": upload.received_bytes if upload.is_complete else 0,
        "is_complete": upload.is_complete,
        "user_id": caller.user_id,
        "project_id": (known.project_id if known is not None else None) or project_id,
        "created_at": work.now,
        "used_at": work.now,
    }
    # Two clients may upload the same archive at once.
    fresh = insert_into(work.session, Archive).values(digest=upload.digest, **values)
    work.session.execute(fresh.on_conflict_do_update(index_elements=["digest"], set_=values))


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
    project: Annotated[
        str | None, Query(max_length=100, description="Counts against its storage quota; default: one of the caller's.")
    ] = None,
) -> ArchiveView:
    """`received_bytes` is the offset to send from. An archive that any user has uploaded before is complete at once."""
    audit.note_object("archive", digest)
    upload = announce_archive(context, caller, digest, size, project)
    if upload.is_complete:
        response.status_code = 200
    return _view_of(upload)


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
    store = archive_store(context)
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
        await run_in_threadpool(register_archive, context, caller, upload)
    return _view_of(upload)


def _end(upload: ArchiveUpload | None, offset: int) -> int:
    return offset if upload is None else upload.received_bytes


async def _put(store: ArchiveStore, caller: Caller, digest: str, offset: int, piece: bytes) -> ArchiveUpload:
    return await run_in_threadpool(store.append, digest, caller.user_id, offset=offset, chunk=piece)


@router.get("/{digest}", operation_id="get_archive", summary="An archive and its upload progress")
def get_archive(digest: DigestPath, caller: Reader, context: AppContextDep) -> ArchiveView:
    """`received_bytes` counts what the caller has uploaded."""
    return _view_of(archive_store(context).upload_progress(digest, caller.user_id))
