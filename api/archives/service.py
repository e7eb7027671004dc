"""Database rows of complete archives; the archive store has the bytes."""

from __future__ import annotations

from sqlalchemy import delete, select, update
from trainmaster.wire.jobs import ArchiveView

from api.app.unit_of_work import AppContext, UnitOfWork
from api.auth import Caller
from core.db.engine import insert_into
from core.db.tables import Archive
from core.storage.archives import ArchiveStore, ArchiveUpload


def store_of(context: AppContext) -> ArchiveStore:
    return ArchiveStore(context.settings.archive_dir, limit_bytes=context.settings.archive_limit_bytes)


def announce(context: AppContext, caller: Caller, digest: str, size_bytes: int) -> ArchiveUpload:
    """Begin an upload, or find it complete.

    The row's ``used_at`` is written before the file is checked: the garbage collection of old archives, which deletes
    the row first, either sees the new time or has deleted the file by then.
    """
    store = store_of(context)
    with context.write() as work:
        work.session.execute(update(Archive).where(Archive.digest == digest).values(used_at=work.now))
        upload = store.start(digest, caller.user_id, size_bytes=size_bytes)
        if upload.is_complete:
            _note_complete(work, caller, upload)
        else:
            # The file of a complete archive was lost with its disk: no job may be submitted with it.
            work.session.execute(delete(Archive).where(Archive.digest == digest))
    return upload


def note_complete(context: AppContext, caller: Caller, upload: ArchiveUpload) -> None:
    """Make the archive known to submissions. May be repeated."""
    with context.write() as work:
        _note_complete(work, caller, upload)


def view_of(upload: ArchiveUpload) -> ArchiveView:
    return ArchiveView(
        digest=upload.digest,
        size_bytes=upload.size_bytes,
        received_bytes=upload.received_bytes,
        is_complete=upload.is_complete,
    )


def _note_complete(work: UnitOfWork, caller: Caller, upload: ArchiveUpload) -> None:
    known = work.session.execute(
        select(Archive.digest).where(Archive.digest == upload.digest, Archive.is_complete)
    ).scalar_one_or_none()
    if known is not None:
        return
    values = {
        "size_bytes": upload.size_bytes,
        "received_bytes": upload.size_bytes,
        "is_complete": True,
        "user_id": caller.user_id,
        "created_at": work.now,
        "used_at": work.now,
    }
    # Two clients may upload the same archive at once.
    fresh = insert_into(work.session, Archive).values(digest=upload.digest, **values)
    work.session.execute(fresh.on_conflict_do_update(index_elements=["digest"], set_=values))
