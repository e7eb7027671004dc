"""Difference of the code of two jobs, file by file."""

from __future__ import annotations

import threading
from typing import Annotated, Final

from fastapi import Query
from trainmaster.wire.jobs import CodeDifference, CodeFileDifference

from api.app.unit_of_work import AppContext, AppContextDep
from api.archives import archive_store
from api.auth import JobAccess, JobViewer
from api.http.routing import new_router
from core.domain.errors import NotFound, Unavailable
from core.storage.code_listing import CodeFile, CodeText, list_code, read_texts

router = new_router("code")

_FILE_LIMIT: Final = 500
_LOCK_TIMEOUT_S: Final = 20.0
_NO_TEXT: Final = CodeText(None)
# One comparison at a time: two large archives take a processor for seconds, and comparisons are rare.
_comparison_lock: Final = threading.Lock()


@router.get("/jobs/{job}/code/diff", operation_id="diff_code", summary="Which files of two jobs' code differ")
def diff_code(
    job: JobViewer,
    context: AppContextDep,
    other: Annotated[str, Query(min_length=1, max_length=100, description="The job to compare with, by id or name.")],
) -> CodeDifference:
    """From `job` to `other`, with the texts of small text files. Archives are not unpacked to disk. A damaged or
    oversized archive is an error.
    """
    with context.read() as work:
        # A job without code has no files.
        accesses = (job, JobAccess(job.caller, other, "viewer"))
        before, after = (access.load(work.session).spec.get("code") for access in accesses)
    if before == after:
        return CodeDifference(before=before, after=after, same_count=0, differ_count=0, items=[])
    if not _comparison_lock.acquire(timeout=_LOCK_TIMEOUT_S):
        raise Unavailable("The code of other jobs is being compared; try again in a moment.")
    try:
        return _difference(context, before, after)
    finally:
        _comparison_lock.release()


def _difference(context: AppContext, old_digest: str | None, new_digest: str | None) -> CodeDifference:
    olds, news = _files(context, old_digest), _files(context, new_digest)
    paths = sorted(path for path in {*olds, *news} if olds.get(path) != news.get(path))
    shown = paths[:_FILE_LIMIT]
    texts_before, texts_after = _texts(context, old_digest, shown), _texts(context, new_digest, shown)
    return CodeDifference(
        before=old_digest,
        after=new_digest,
        same_count=len({*olds, *news}) - len(paths),
        differ_count=len(paths),
        items=[
            _item(
                path, olds.get(path), news.get(path), texts_before.get(path, _NO_TEXT), texts_after.get(path, _NO_TEXT)
            )
            for path in shown
        ],
    )


def _item(
    path: str, old: CodeFile | None, new: CodeFile | None, before: CodeText, after: CodeText
) -> CodeFileDifference:
    note = before.note or after.note
    return CodeFileDifference(
        path=path.encode("utf-8", "replace").decode(),  # a name need not be UTF-8; JSON must
        change="added" if old is None else "removed" if new is None else "changed",
        size_before=old and old.size_bytes,
        size_after=new and new.size_bytes,
        text_before=None if note else before.text,
        text_after=None if note else after.text,
        note=note,
    )


def _files(context: AppContext, digest: str | None) -> dict[str, CodeFile]:
    if digest is None:
        return {}
    try:
        return list_code(archive_store(context).path_of(digest))
    except FileNotFoundError:
        raise _no_archive() from None


def _texts(context: AppContext, digest: str | None, paths: list[str]) -> dict[str, CodeText]:
    if digest is None or not paths:
        return {}
    try:
        return read_texts(archive_store(context).path_of(digest), frozenset(paths))
    except FileNotFoundError:
        raise _no_archive() from None


def _no_archive() -> NotFound:
    return NotFound("A code archive is gone: archives that no job needs any more are deleted.")
