from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Request
from fastapi.responses import Response
from pydantic import Field
from trainmaster.wire.base import Page
from trainmaster.wire.checkpoints import (
    DifferencePage,
    RetentionRequest,
    RetentionView,
    TensorPage,
    TensorStatistics,
)
from trainmaster.wire.jobs import CheckpointView

from api.app.unit_of_work import AppContextDep
from api.auth import JobAccess, JobMember, JobViewer
from api.checkpoints import actions, download, service
from api.checkpoints.inside import CheckpointInspector, difference_page, statistics_page, tensor_page
from api.http.paging import PageQuery
from api.http.routing import new_router

router = new_router("checkpoints", "/jobs/{job}/checkpoints")

CheckpointPath = Annotated[
    str,
    Query(
        alias="path",
        min_length=1,
        max_length=4096,
        description="Relative to the job's output: a file, a folder, or the prefix of TensorFlow's files.",
    ),
]
_CONTENT = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


def inspector_of(request: Request) -> CheckpointInspector:
    inspector: CheckpointInspector = request.app.state.checkpoint_inspector
    return inspector


class CheckpointQuery(PageQuery):
    incomplete: Annotated[
        bool, Field(description="Include checkpoints that are being written or were never finished.")
    ] = False


class PathQuery(PageQuery):
    """A checkpoint and a page of its content."""

    path: Annotated[str, Field(min_length=1, max_length=4096, description="As in the list of checkpoints.")]
    limit: Annotated[int, Field(ge=1, le=1000)] = 200


class TensorQuery(PathQuery):
    search: Annotated[str, Field(max_length=200, description="Part of the tensor's name.")] = ""
    kind: Annotated[Literal["weight", "optimizer"] | None, Field(description="Unstated: both.")] = None


class StatisticsQuery(PathQuery):
    tensor: Annotated[
        list[str], Field(max_length=1000, description="Only this tensor; may be repeated. Unstated: all.")
    ] = []  # noqa: RUF012 (a model's default is copied)


class DifferenceQuery(PathQuery):
    other: Annotated[str, Field(min_length=1, max_length=4096, description="The path of the later checkpoint.")]
    other_job: Annotated[
        str | None, Field(max_length=100, description="The job of the later checkpoint. Unstated: the same.")
    ] = None


@router.get("", operation_id="list_checkpoints", summary="Checkpoints of a job, newest first")
def list_checkpoints(
    job: JobViewer, context: AppContextDep, query: Annotated[CheckpointQuery, Query()]
) -> Page[CheckpointView]:
    """Checkpoints that the job reported, with their metrics, and those of any known format found in its output."""
    return service.list_page(context, job, query, incomplete=query.incomplete)


@router.get("/tensors", operation_id="list_tensors", summary="The tensors of a checkpoint")
def list_tensors(
    request: Request, job: JobViewer, context: AppContextDep, query: Annotated[TensorQuery, Query()]
) -> TensorPage:
    """Names, shapes and dtypes; elements are not read. No code in the file is executed."""
    opened = inspector_of(request).open(context, job, query.path)
    return tensor_page(opened, search=query.search, kind=query.kind, cursor=query.cursor, limit=query.limit)


@router.get("/statistics", operation_id="list_tensor_statistics", summary="Statistics of a checkpoint's tensors")
def list_tensor_statistics(
    request: Request, job: JobViewer, context: AppContextDep, query: Annotated[StatisticsQuery, Query()]
) -> Page[TensorStatistics]:
    """A page has what can be computed in about two seconds, at least one tensor; continue with `next_cursor`."""
    inspector = inspector_of(request)
    opened = inspector.open(context, job, query.path)
    return statistics_page(
        inspector, opened, who=job.caller.user_id, names=query.tensor, cursor=query.cursor, limit=query.limit
    )


@router.get("/diff", operation_id="diff_checkpoints", summary="The difference of two checkpoints")
def diff_checkpoints(
    request: Request, job: JobViewer, context: AppContextDep, query: Annotated[DifferenceQuery, Query()]
) -> DifferencePage:
    """From `path` to `other`: tensors that were added, removed or changed in shape come first, then the distances of
    the others. A page has what can be computed in about two seconds. `layers` are on the last page.
    """
    inspector = inspector_of(request)
    before = inspector.open(context, job, query.path)
    there = job if query.other_job is None else JobAccess(job.caller, query.other_job, "viewer")
    after = inspector.open(context, there, query.other)
    return difference_page(inspector, before, after, who=job.caller.user_id, cursor=query.cursor, limit=query.limit)


@router.get(
    "/content",
    operation_id="download_checkpoint",
    summary="A checkpoint's bytes: a file, or a tar of several",
    response_class=Response,
    responses={200: _CONTENT, 206: {**_CONTENT, "description": "A range of a file."}},
)
@router.head("/content", include_in_schema=False)
def download_checkpoint(job: JobViewer, context: AppContextDep, path: CheckpointPath) -> Response:
    with context.read() as work:
        tree, landed = actions.find(work.session, job.load(work.session), path)
    return download.answer(tree, landed)


@router.delete("", operation_id="delete_checkpoint", summary="Delete a checkpoint", status_code=204)
def delete_checkpoint(job: JobMember, context: AppContextDep, path: CheckpointPath) -> Response:
    """Refused while the checkpoint is pinned, or while a job that has not ended resumes from it."""
    actions.remove(context, job, path)
    return Response(status_code=204)


@router.put("/kept", operation_id="keep_checkpoint", summary="Pin a checkpoint", status_code=204)
def keep_checkpoint(job: JobMember, context: AppContextDep, path: CheckpointPath) -> Response:
    """Neither retention nor a user can delete it until it is released."""
    actions.keep(context, job, path)
    return Response(status_code=204)


@router.delete("/kept", operation_id="release_checkpoint", summary="Unpin a checkpoint", status_code=204)
def release_checkpoint(job: JobMember, context: AppContextDep, path: CheckpointPath) -> Response:
    actions.release(context, job, path)
    return Response(status_code=204)


@router.get("/retention", operation_id="get_retention", summary="The retention policy of a job's checkpoints")
def get_retention(job: JobViewer, context: AppContextDep) -> RetentionView:
    with context.read() as work:
        return actions.get_retention(work.session, job.load(work.session))


@router.put("/retention", operation_id="set_retention", summary="Set the retention policy of a job's checkpoints")
def set_retention(body: RetentionRequest, job: JobMember, context: AppContextDep) -> RetentionView:
    """Other checkpoints are deleted in the background; never the newest, a pinned one, or one in use."""
    with context.write() as work:
        return actions.set_retention(work, job.caller, job.load(work.session), body)


@router.delete("/retention", operation_id="clear_retention", summary="Keep all checkpoints", status_code=204)
def clear_retention(job: JobMember, context: AppContextDep) -> Response:
    with context.write() as work:
        actions.clear_retention(work, job.caller, job.load(work.session))
    return Response(status_code=204)
