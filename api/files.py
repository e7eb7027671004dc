"""Files under a job's output: folders, page by page, and the bytes of a file."""

from __future__ import annotations

import heapq
import mimetypes
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import Query
from fastapi.responses import Response
from pydantic import Field
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import FileEntry

from api.app.unit_of_work import AppContextDep
from api.auth import JobViewer
from api.http.paging import PageQuery
from api.http.ranges import OpenFileResponse
from api.http.routing import new_router
from api.volumes.access import readable_output
from core.domain.errors import NotFound, TrainmasterError
from core.storage.tree import Tree, TreeEntry, split_path

_PAGE_LIMIT: Final = 1_000
OCTETS: Final = "application/octet-stream"


def _list_folder(tree: Tree, path: str, *, after: str, limit: int) -> Page[FileEntry]:
    """Entries of a folder in order of name, after the name ``after``.

    A symbolic link is listed as its target, and left out if the target is missing or outside of the output. The output
    of a job that has not started is empty.
    """
    folder = "/".join(split_path(path))
    try:
        with tree.open_folder(folder) as fd:
            names = heapq.nsmallest(limit + 1, (name for name in _names(fd) if name > after))
            links = {name for name in names if _is_link(name, fd)}
    except NotFound:
        if folder:
            raise
        return Page(items=[])
    found = ((_stat(tree, f"{folder}/{name}" if folder else name), name in links) for name in names[:limit])
    is_last = len(names) <= limit
    return Page(
        items=[_file_entry(entry, is_link=is_link) for entry, is_link in found if entry is not None],
        next_cursor=None if is_last else names[limit - 1],
    )


def _file_entry(entry: TreeEntry, *, is_link: bool = False) -> FileEntry:
    return FileEntry(
        path=entry.path,
        is_dir=entry.is_dir,
        is_link=is_link,
        size_bytes=entry.size_bytes,
        modified_at=datetime.fromtimestamp(entry.mtime_ns / 1e9, UTC),
    )


def media_type_of(path: str) -> str:
    """By the name's suffix; the platform never looks into a user's files."""
    kind, encoding = mimetypes.guess_type(path, strict=False)
    if kind is None or encoding is not None:  # a .tar.gz is sent as it is, not as a tar with Content-Encoding: gzip
        return OCTETS
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind


def _names(fd: int) -> Iterator[str]:
    with os.scandir(fd) as entries:
        for entry in entries:
            # Names that are not UTF-8 cannot be written in JSON, nor requested; the job may rename them.
            if entry.name.isprintable() or entry.name.encode("utf-8", "ignore") == os.fsencode(entry.name):
                yield entry.name


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False  # deleted meanwhile


def _stat(tree: Tree, path: str) -> TreeEntry | None:
    try:
        return tree.stat(path)
    except TrainmasterError:
        return None


router = new_router("files")

_CONTENT = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


class FolderQuery(PageQuery):
    """A folder to list. Cursors are names of entries, which may be longer than the cursors of other lists."""

    path: Annotated[str, Field(max_length=4096, description="Relative to the job's output.")] = ""
    limit: Annotated[int, Field(ge=1, le=_PAGE_LIMIT)] = 200
    cursor: Annotated[str | None, Field(max_length=1024, description="`next_cursor` of the previous page.")] = None


@router.get("/jobs/{job}/files", operation_id="list_files", summary="A folder of the job's output")
def list_files(
    job: JobViewer,
    context: AppContextDep,
    query: Annotated[FolderQuery, Query()],
) -> Page[FileEntry]:
    """In order of name. Symbolic links that lead out of the output are left out."""
    return _list_folder(readable_output(context, job), query.path, after=query.cursor or "", limit=query.limit)


@router.get(
    "/jobs/{job}/files/content",
    operation_id="download_file",
    summary="The bytes of a file, or a range of them",
    response_class=Response,
    responses={200: _CONTENT, 206: {**_CONTENT, "description": "The range."}},
)
@router.head("/jobs/{job}/files/content", include_in_schema=False)
def download_file(job: JobViewer, context: AppContextDep, path: Annotated[str, Query(max_length=4096)]) -> Response:
    """Supports `Range`, `If-Range` and `If-None-Match`; the ETag changes when the file is written."""
    fd = readable_output(context, job).open_file(path)
    name = path.rstrip("/").rpartition("/")[2]
    return OpenFileResponse(fd, media_type=media_type_of(name), name=name)
