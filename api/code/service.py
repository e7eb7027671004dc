"""The code of two jobs, file by file."""

from __future__ import annotations

import threading
from typing import Final

from trainmaster.wire.code import CodeDifference, CodeFileDifference

from api.app.unit_of_work import AppContext
from api.archives.service import store_of
from api.auth import JobAccess
from core.domain.errors import NotFound, Unavailable
from core.storage.code_listing import CodeFile, CodeText, list_code, read_texts

_ITEMS: Final = 500
_PATIENCE_S: Final = 20.0
_NO_TEXT: Final = CodeText(None)
# One at a time: two large archives take a processor for seconds, and few people ask.
_turn: Final = threading.Lock()


def difference(context: AppContext, before: JobAccess, after: JobAccess) -> CodeDifference:
    """From the code of ``before`` to that of ``after``; a job without code has no files.

    Raises:
        NotFound: an archive is gone.
        CodeUnreadable: one is damaged, or larger than code is.
        Unavailable: others are compared at this moment.
    """
    with context.read() as work:
        one, other = (access.load(work.session).spec.get("code") for access in (before, after))
    if one == other:
        return CodeDifference(before=one, after=other, same_count=0, differ_count=0, items=[])
    if not _turn.acquire(timeout=_PATIENCE_S):
        raise Unavailable("The code of other jobs is being compared; try again in a moment.")
    try:
        return _difference(context, one, other)
    finally:
        _turn.release()


def _difference(context: AppContext, one: str | None, other: str | None) -> CodeDifference:
    olds, news = _files(context, one), _files(context, other)
    paths = sorted(path for path in {*olds, *news} if olds.get(path) != news.get(path))
    shown = paths[:_ITEMS]
    texts_before, texts_after = _texts(context, one, shown), _texts(context, other, shown)
    return CodeDifference(
        before=one,
        after=other,
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
        change="appeared" if old is None else "went" if new is None else "changed",
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
    return NotFound("A code archive is gone: those that no job needs any more are swept away.")
