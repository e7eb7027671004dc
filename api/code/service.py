"""Difference of the code of two jobs, file by file."""

from __future__ import annotations

import threading
from typing import Final

from trainmaster.wire.code import CodeDifference, CodeFileDifference

from api.app.unit_of_work import AppContext
from api.archives.service import store_of
from api.auth import JobAccess
from core.domain.errors import NotFound, Unavailable
from core.storage.code_listing import CodeFile, CodeText, list_code, read_texts

_FILE_LIMIT: Final = 500
_LOCK_TIMEOUT_S: Final = 20.0
_NO_TEXT: Final = CodeText(None)
# One comparison at a time: two large archives take a processor for seconds, and comparisons are rare.
_comparison_lock: Final = threading.Lock()


def difference(context: AppContext, before: JobAccess, after: JobAccess) -> CodeDifference:
    """From the code of ``before`` to that of ``after``; a job without code has no files.

    Raises:
        NotFound: an archive is gone.
        CodeUnreadable: an archive is damaged or oversized.
        Unavailable: another comparison is running.
    """
    with context.read() as work:
        old_digest, new_digest = (access.load(work.session).spec.get("code") for access in (before, after))
    if old_digest == new_digest:
        return CodeDifference(before=old_digest, after=new_digest, same_count=0, differ_count=0, items=[])
    if not _comparison_lock.acquire(timeout=_LOCK_TIMEOUT_S):
        raise Unavailable("The code of other jobs is being compared; try again in a moment.")
    try:
        return _difference(context, old_digest, new_digest)
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
        return list_code(store_of(context).path_of(digest))
    except FileNotFoundError:
        raise _gone() from None


def _texts(context: AppContext, digest: str | None, paths: list[str]) -> dict[str, CodeText]:
    if digest is None or not paths:
        return {}
    try:
        return read_texts(store_of(context).path_of(digest), frozenset(paths))
    except FileNotFoundError:
        raise _gone() from None


def _gone() -> NotFound:
    return NotFound("A code archive is gone: archives that no job needs any more are deleted.")
