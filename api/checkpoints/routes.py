from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Literal

from fastapi import Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import Field
from sqlalchemy import delete, select
from sqlalchemy.orm import Session
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
from api.checkpoints import service
from api.checkpoints.contents import CheckpointInspector, difference_page, statistics_page, tensor_page
from api.files import OCTETS
from api.http.paging import PageQuery
from api.http.ranges import ByteRange, OpenFileResponse, attachment
from api.http.routing import new_router
from api.http.tar import TarArchive, TarMember
from api.jobs.verbs import record_event
from api.volumes.access import demand_output_access, readable_output
from core.db.repositories.checkpoints import forget, pinned_paths, used_paths
from core.db.repositories.storage_usage import request_measurement
from core.db.tables import Job, PinnedCheckpoint, Retention
from core.domain.errors import Conflict, InvalidRequest, TrainmasterError
from core.domain.jobs.retention import RetentionRule
from core.inspection.discovery import PINNED_MARKER, CheckpointFiles, checkpoint_at, files_of
from core.storage.tree import Tree
from core.storage.volumes import job_output

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
        inspector, opened, caller=job.caller.user_id, names=query.tensor, cursor=query.cursor, limit=query.limit
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
    return difference_page(inspector, before, after, caller=job.caller.user_id, cursor=query.cursor, limit=query.limit)


@router.get(
    "/content",
    operation_id="download_checkpoint",
    summary="A checkpoint's bytes: a file, or a tar of several",
    response_class=Response,
    responses={200: _CONTENT, 206: {**_CONTENT, "description": "A range of a file."}},
)
@router.head("/content", include_in_schema=False)
def download_checkpoint(job: JobViewer, context: AppContextDep, path: CheckpointPath) -> Response:
    tree = readable_output(context, job)
    return _download(tree, checkpoint_at(tree, path))


@router.delete("", operation_id="delete_checkpoint", summary="Delete a checkpoint", status_code=204)
def delete_checkpoint(job: JobMember, context: AppContextDep, path: CheckpointPath) -> Response:
    """Refused while the checkpoint is pinned, or while a job that has not ended resumes from it."""
    demand_output_access(context, job, writes=True)
    with context.write() as work:
        row = job.load(work.session)
        tree, landed = _find(work.session, row, path)
        if landed.path in pinned_paths(work.session, row):
            raise Conflict(f"{landed.path} is pinned; release it first, then delete it.", field="path")
        if landed.path in used_paths(work.session, row):
            raise Conflict(f"{landed.path} is in use: a job that has not ended resumes from it.", field="path")
        forget(work.session, row, landed.path)
        record_event(work, job.caller, row, "checkpoint.deleted", landed.path)
    # After the commit: a crash in between leaves files, never a row of a deleted checkpoint.
    for part in landed.parts:
        tree.delete(part)
    with context.write() as work:
        request_measurement(work.session, row.project_id, work.now)
    return Response(status_code=204)


@router.put("/kept", operation_id="keep_checkpoint", summary="Pin a checkpoint", status_code=204)
def keep_checkpoint(job: JobMember, context: AppContextDep, path: CheckpointPath) -> Response:
    """Neither retention nor a user can delete it until it is released."""
    demand_output_access(context, job, writes=True)
    with context.write() as work:
        row = job.load(work.session)
        tree, landed = _find(work.session, row, path)
        if landed.path in pinned_paths(work.session, row):
            return Response(status_code=204)
        work.session.add(PinnedCheckpoint(job_id=row.id, path=landed.path, user=job.caller.user, created_at=work.now))
        record_event(work, job.caller, row, "checkpoint.kept", landed.path)
    if landed.is_dir:
        with suppress(TrainmasterError), tree.new_file(f"{landed.path}/{PINNED_MARKER}"):
            pass  # on a volume that is read-only here, the training library does not learn of it
    return Response(status_code=204)


@router.delete("/kept", operation_id="release_checkpoint", summary="Unpin a checkpoint", status_code=204)
def release_checkpoint(job: JobMember, context: AppContextDep, path: CheckpointPath) -> Response:
    path = path.strip("/")
    with context.write() as work:
        row = job.load(work.session)
        same_output = select(Job.id).where(Job.output_volume == row.output_volume, Job.output_path == row.output_path)
        pinned = (PinnedCheckpoint.job_id.in_(same_output), PinnedCheckpoint.path == path)
        hit = work.session.execute(delete(PinnedCheckpoint).where(*pinned).returning(PinnedCheckpoint.path)).first()
        if hit is not None:
            record_event(work, job.caller, row, "checkpoint.released", path)
        with suppress(TrainmasterError):
            job_output(work.session, row).delete(f"{path}/{PINNED_MARKER}")
    return Response(status_code=204)


@router.get("/retention", operation_id="get_retention", summary="The retention policy of a job's checkpoints")
def get_retention(job: JobViewer, context: AppContextDep) -> RetentionView:
    with context.read() as work:
        return _retention_view(work.session, job.load(work.session))


@router.put("/retention", operation_id="set_retention", summary="Set the retention policy of a job's checkpoints")
def set_retention(body: RetentionRequest, job: JobMember, context: AppContextDep) -> RetentionView:
    """Other checkpoints are deleted in the background; never the newest, a pinned one, or one in use."""
    with context.write() as work:
        row = job.load(work.session)
        rule = RetentionRule(body.last, body.best, body.metric, body.mode, body.every)
        if rule.is_empty:
            raise InvalidRequest(
                "State at least one of last, best and every; DELETE the retention to keep all checkpoints.",
                field="last",
            )
        if (rule.best is None) != (rule.metric is None):
            raise InvalidRequest(
                "best and metric need each other: state the metric that ranks checkpoints.", field="metric"
            )
        stored = work.session.get(Retention, row.id)
        if stored is None:
            stored = Retention(job_id=row.id)
            work.session.add(stored)
        stored.rule, stored.user, stored.updated_at = rule.to_json(), job.caller.user, work.now
        work.session.flush()
        summary = ", ".join(f"{key} {value}" for key, value in rule.to_json().items() if value is not None)
        record_event(work, job.caller, row, "retention.set", summary)
        return _retention_view(work.session, row)


@router.delete("/retention", operation_id="clear_retention", summary="Keep all checkpoints", status_code=204)
def clear_retention(job: JobMember, context: AppContextDep) -> Response:
    with context.write() as work:
        row = job.load(work.session)
        own_rule = delete(Retention).where(Retention.job_id == row.id)
        if work.session.execute(own_rule.returning(Retention.job_id)).first() is not None:
            record_event(work, job.caller, row, "retention.cleared", "")
    return Response(status_code=204)


def _find(session: Session, job: Job, path: str) -> tuple[Tree, CheckpointFiles]:
    """A checkpoint in the job's output. Raises ``NotFound``, or ``Conflict`` if the control plane cannot read the
    volume.
    """
    tree = job_output(session, job)
    return tree, checkpoint_at(tree, path)


def _retention_view(session: Session, job: Job) -> RetentionView:
    row = session.get(Retention, job.id)
    if row is None:
        return RetentionView()
    return RetentionView.model_validate({**row.rule, "user": row.user, "updated_at": row.updated_at})


def _download(tree: Tree, landed: CheckpointFiles) -> Response:
    """A file as it is; a folder or several files as a tar.

    A tar has its Content-Length, so that clients see the progress and whether it is complete.
    """
    above, _, name = landed.path.rpartition("/")
    if not landed.is_dir and len(landed.parts) == 1:
        return OpenFileResponse(tree.open_file(landed.parts[0]), media_type=OCTETS, name=name)
    archive = TarArchive(
        tree,
        [
            TarMember(path.removeprefix(f"{above}/") if above else path, path, status.st_size, int(status.st_mtime))
            for path, status in files_of(tree, landed)
        ],
    )
    headers = {
        "Content-Length": str(archive.size_bytes),
        "Content-Disposition": attachment(f"{name}.tar"),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    chunks = archive.stream(ByteRange(0, archive.size_bytes))
    return StreamingResponse(chunks, media_type="application/x-tar", headers=headers)
