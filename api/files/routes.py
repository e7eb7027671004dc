"""Files under a job's output."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from fastapi.responses import Response
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import FileEntry

from api.auth import JobViewer
from api.files import service
from api.ranges import OpenFileResponse
from api.routing import new_router
from api.work import PlatformDep

router = new_router("files")

PathQuery = Annotated[str, Query(max_length=4096, description="Relative to the job's output.")]
_CONTENT = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


@router.get("/jobs/{job}/files", operation_id="list_files", summary="A folder of the job's output")
def list_files(
    job: JobViewer,
    platform: PlatformDep,
    path: PathQuery = "",
    cursor: Annotated[str, Query(max_length=1024)] = "",
    limit: Annotated[int, Query(ge=1, le=service.PAGE_LIMIT)] = 200,
) -> Page[FileEntry]:
    """By name. Links that lead out of the output are left out."""
    return service.list_folder(service.open_output(platform, job), path, after=cursor, limit=limit)


@router.get(
    "/jobs/{job}/files/content",
    operation_id="download_file",
    summary="The bytes of a file, or a range of them",
    response_class=Response,
    responses={200: _CONTENT, 206: {**_CONTENT, "description": "The range."}},
)
@router.head("/jobs/{job}/files/content", include_in_schema=False)
def download_file(job: JobViewer, platform: PlatformDep, path: Annotated[str, Query(max_length=4096)]) -> Response:
    """`Range`, `If-Range` and `If-None-Match` are honoured; the ETag changes when the file is written to."""
    fd = service.open_output(platform, job).open_file(path)
    name = path.rstrip("/").rpartition("/")[2]
    return OpenFileResponse(fd, media_type=service.media_type_of(name), name=name)
