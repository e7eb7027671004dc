"""Files under a job's output."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from fastapi.responses import Response
from pydantic import Field
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import FileEntry

from api.app.unit_of_work import AppContextDep
from api.auth import JobViewer
from api.files import service
from api.http.paging import PageQuery
from api.http.ranges import OpenFileResponse
from api.http.routing import new_router

router = new_router("files")

_CONTENT = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


class FolderQuery(PageQuery):
    """A folder to list. Cursors are names of entries, which may be longer than the cursors of other lists."""

    path: Annotated[str, Field(max_length=4096, description="Relative to the job's output.")] = ""
    limit: Annotated[int, Field(ge=1, le=service.PAGE_LIMIT)] = 200
    cursor: Annotated[str | None, Field(max_length=1024, description="`next_cursor` of the previous page.")] = None


@router.get("/jobs/{job}/files", operation_id="list_files", summary="A folder of the job's output")
def list_files(
    job: JobViewer,
    context: AppContextDep,
    query: Annotated[FolderQuery, Query()],
) -> Page[FileEntry]:
    """In order of name. Symbolic links that lead out of the output are left out."""
    return service.list_folder(
        service.open_output(context, job), query.path, after=query.cursor or "", limit=query.limit
    )


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
    fd = service.open_output(context, job).open_file(path)
    name = path.rstrip("/").rpartition("/")[2]
    return OpenFileResponse(fd, media_type=service.media_type_of(name), name=name)
