"""Retention policies of projects: read, change, preview; and the pins that exempt jobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from fastapi import Response
from sqlalchemy import select
from sqlalchemy.orm import Session
from trainmaster.wire.retention import (
    RetentionPolicyUpdate,
    RetentionPolicyView,
    RetentionPreview,
    RetentionPreviewLine,
)

from api.app.unit_of_work import AppContext, AppContextDep
from api.auth import JobAccess, JobMember, ProjectAdmin, ProjectViewer
from api.http.routing import json_response, new_router
from api.jobs import verbs
from api.jobs.schemas import load_detail
from core.db.repositories import retention
from core.db.tables import Job, Volume
from core.domain.errors import TrainmasterError
from core.domain.sharing.retention import DataKind, RetentionPolicy, changed_retention, parse_retention
from core.storage.disk_usage import DiskUsage
from core.storage.logs.files import FOLDER as LOGS
from core.storage.volumes import has_own_output, tree_of

router = new_router("retention")

_FILES: Final = (DataKind.OUTPUTS, DataKind.LOGS, DataKind.JOBS)
_MEASURED_JOBS: Final = 500
_MEASURE_S: Final = 2.0  # per kind


class _TooLong(Exception):
    """The walk takes longer than a request should."""


@router.get(
    "/projects/{project}/retention", operation_id="get_retention_policy", summary="A project's retention policy"
)
def get_retention_policy(project: ProjectViewer, context: AppContextDep) -> RetentionPolicyView:
    """For how long data of ended jobs are kept; by default for ever."""
    with context.read() as work:
        row = project.load(work.session)
        return _view(row.name, parse_retention(row.retention))


@router.patch("/projects/{project}/retention", operation_id="update_retention_policy", summary="Set a retention policy")
def update_retention_policy(
    project: ProjectAdmin, body: RetentionPolicyUpdate, context: AppContextDep
) -> RetentionPolicyView:
    """Applied within minutes, and from then on. Preview it first: what is deleted does not come back."""
    with context.write() as work:
        row = project.load(work.session)
        policy = changed_retention(parse_retention(row.retention), body.keep)
        row.retention = {kind.value: age_s for kind, age_s in policy.items()} or None
        data = body.model_dump(mode="json")
        work.record_event("project.retention_set", project.caller.actor, project_id=row.id, data=data)
        return _view(row.name, policy)


@router.post(
    "/projects/{project}/retention/preview",
    operation_id="preview_retention_policy",
    summary="What a policy would delete",
)
def preview_retention_policy(
    project: ProjectViewer, body: RetentionPolicyUpdate, context: AppContextDep
) -> RetentionPreview:
    """Under the present policy with the changes of the body. Changes nothing."""
    with context.read() as work:
        row = project.load(work.session)
        policy = changed_retention(parse_retention(row.retention), body.keep)
    lines = [_line(context, row.id, kind, policy[kind]) for kind in DataKind if kind in policy]
    return RetentionPreview(project=row.name, lines=lines)


@router.put("/jobs/{job}/pin", operation_id="pin_job", summary="Exempt a job from retention")
def pin_job(job: JobMember, context: AppContextDep) -> Response:
    """Its data are kept, whatever the project's policy says, until it is unpinned."""
    return _set_pin(context, job, user=job.caller.user)


@router.delete("/jobs/{job}/pin", operation_id="unpin_job", summary="Let retention delete a job's data again")
def unpin_job(job: JobMember, context: AppContextDep) -> Response:
    return _set_pin(context, job, user=None)


def _set_pin(context: AppContext, job: JobAccess, *, user: str | None) -> Response:
    with context.write() as work:
        row = job.load(work.session)
        verbs.lock(work.session, row)
        if (row.pinned_by is None) != (user is None):
            retention.set_pin(work.session, row.id, user, work.now)
            verbs.record_event(work, job.caller, row, "job.pinned" if user else "job.unpinned", "")
        work.session.refresh(row)
        detail = load_detail(work.session, row, work.now)
    return json_response(detail)


def _view(project: str, policy: RetentionPolicy) -> RetentionPolicyView:
    return RetentionPolicyView(project=project, keep={kind.value: policy.get(kind) for kind in DataKind})


def _line(context: AppContext, project_id: str, kind: DataKind, age_s: float) -> RetentionPreviewLine:
    with context.read() as work:
        before = work.now - timedelta(seconds=age_s)
        query = retention.expired_jobs(project_id, kind, before).limit(_MEASURED_JOBS)
        ids = work.session.scalars(query).all()
        jobs, volumes = _places(work.session, ids) if kind in _FILES else ((), {})
        count = retention.count_expired(work.session, project_id, kind, before)
        size = retention.freed_in_database(work.session, project_id, kind, before)
        oldest = work.session.scalar(select(Job.finished_at).where(Job.id == ids[0])) if ids else None
    is_partial = False
    if kind in _FILES:
        size, is_partial = _measure(jobs, volumes, kind)
        is_partial = is_partial or count > len(ids)
    return RetentionPreviewLine(
        kind=kind.value, keep_s=age_s, jobs=count, bytes=size, is_partial=is_partial, oldest=oldest
    )


def _places(session: Session, ids: Sequence[str]) -> tuple[Sequence[Job], dict[str, Volume]]:
    jobs = session.scalars(select(Job).where(Job.id.in_(ids))).all()
    names = {job.output_volume for job in jobs}
    volumes = session.scalars(select(Volume).where(Volume.name.in_(names), Volume.root.is_not(None)))
    return jobs, {volume.name: volume for volume in volumes}


def _measure(jobs: Sequence[Job], volumes: dict[str, Volume], kind: DataKind) -> tuple[int, bool]:
    """Bytes of the jobs' files, and whether there are more."""
    until_s = time.monotonic() + _MEASURE_S

    def pace(_entries: int) -> None:
        if time.monotonic() > until_s:
            raise _TooLong

    usage, total = DiskUsage(pace), 0
    for job in jobs:
        if job.output_volume not in volumes or job.deleted_at is not None:
            continue
        tree = tree_of(volumes[job.output_volume])
        logs = usage_path = f"{job.output_path}/{LOGS}/{job.id}"
        try:
            if kind is DataKind.LOGS or not has_own_output(job):
                total += usage.measure(tree, usage_path) if kind is not DataKind.OUTPUTS else 0
            else:
                total += usage.measure(tree, job.output_path)
                total -= usage.measure(tree, logs) if kind is DataKind.OUTPUTS else 0
            pace(0)
        except _TooLong:
            return total, True
        except (TrainmasterError, OSError):
            continue  # a volume that is away
    return total, False
