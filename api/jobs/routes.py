from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final

from fastapi import Header, Query, Response
from sqlalchemy.orm import Session
from trainmaster.spec import JobSpec
from trainmaster.spec.rules import gang_warnings
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import CloneRequest, JobDetail, JobView, ReasonRequest, ResumeRequest, SubmitRequest

from api.app import audit
from api.app.unit_of_work import AppContext, AppContextDep
from api.auth import Caller, JobAccess, JobMember, JobViewer, Reader, Writer
from api.checkpoints.service import find_complete
from api.http.routing import json_response, new_router
from api.jobs import verbs
from api.jobs.listing import JobQueryParams, list_page
from api.jobs.schemas import fresh_detail, load_detail
from api.jobs.service import (
    Submission,
    budget_warnings,
    canonical,
    changed_spec,
    check_submission,
    clone_name,
    digest_of,
    read_spec,
    submit,
)
from api.volumes.access import demand_output_access
from core.db.repositories.storage_usage import read_state, request_measurement
from core.db.tables import Job
from core.storage.resume_sources import resume_path, with_resume_mount
from core.storage.volumes import RESUME_MOUNT

router = new_router("jobs", "/jobs")

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x20-\x7e]+$",
        description="A unique text per job; repeating a request with the same key creates no second job.",
    ),
]
REPLAYED: Final = "Idempotency-Replayed"
_WARNING: Final = (
    "What in the command contradicts the replicas, a budget that is nearly spent, and how full the project's storage "
    'is from 80 % on: `299 - "sentence"`, separated by commas; each sentence is a JSON string.'
)


@router.post(
    "",
    operation_id="submit_job",
    summary="Submit a job",
    status_code=201,
    response_model=JobDetail,
    responses={
        200: {
            "model": JobSpec,
            "description": "With `dry_run`: the canonical spec; nothing was submitted.",
            "headers": {"Warning": {"description": _WARNING, "schema": {"type": "string"}}},
        }
    },
)
async def submit_job(
    body: SubmitRequest, caller: Writer, context: AppContextDep, key: IdempotencyKey = None
) -> Response:
    """Queue a job. All mistakes of the spec are reported at once. Needs the role `member` in the project."""
    return await context.run_bounded(_submit_new, body, caller, context, key)


def _submit_new(body: SubmitRequest, caller: Caller, context: AppContext, key: str | None) -> Response:
    spec = read_spec(body)
    submission = check_submission(context, caller, spec)
    if body.dry_run:
        audit.skip()
        with context.read() as work:
            storage = read_state(work.session, submission.member.project_id)
        storage.demand_room()
        budget = budget_warnings(context, submission.member)
        warnings = [*gang_warnings(spec), *budget, *storage.warnings()]
        return json_response(spec, headers=_warning_header(warnings))
    return _submit(context, caller, submission, key, digest_of("submit", spec.model_dump(mode="json")))


def _warning_header(sentences: Sequence[str]) -> dict[str, str]:
    """https://www.rfc-editor.org/rfc/rfc7234#section-5.5, as Kubernetes' API warns; JSON strings are ASCII here."""
    warnings = [f"299 - {json.dumps(sentence)}" for sentence in sentences]
    return {"Warning": ", ".join(warnings)} if warnings else {}


@router.post(
    "/{job}/clone",
    operation_id="clone_job",
    summary="Submit a new job from the spec of this one",
    status_code=201,
    response_model=JobDetail,
)
def clone_job(
    body: CloneRequest, job: JobViewer, caller: Writer, context: AppContextDep, key: IdempotencyKey = None
) -> Response:
    """Needs the role `member` in the new job's project, and `viewer` in the original's."""
    with context.read() as work:
        original = job.load(work.session)
        resume_from = _resume_from(work.session, original, body)
        name = body.changes.get("name")
        if name is None:
            name = clone_name(work.session, caller, original)
    raw = changed_spec(original.spec, {**body.changes, "name": name})
    if resume_from is not None:
        raw = with_resume_mount(raw, original)
    submission = check_submission(context, caller, canonical(raw))
    submission = replace(submission, cloned_from=original.id, resume_from=resume_from)
    digest = digest_of("clone", {"job": original.id, **body.model_dump(mode="json")})
    return _submit(context, caller, submission, key, digest)


def _resume_from(session: Session, original: Job, body: CloneRequest) -> str | None:
    if body.checkpoint is not None:
        return f"{RESUME_MOUNT}/{find_complete(session, original, body.checkpoint)}"
    return resume_path(session, original) if body.resume else None


def _submit(context: AppContext, caller: Caller, submission: Submission, key: str | None, digest: str) -> Response:
    # One statement writes the job; the statement before it (the archive's last use) may be committed without a job.
    with context.write(by_statement=True) as work:
        submitted = submit(work, caller, submission, key=key, digest=digest)
        if submitted.row is None:
            earlier = load_detail(work.session, work.session.get_one(Job, submitted.job_id), work.now)
            return json_response(earlier, 201, {**_location(submitted.job_id), REPLAYED: "true"})
    detail = fresh_detail(
        submitted.row,
        project=submission.member.project,
        user=caller.user,
        spec=submission.spec,
        warnings=submitted.warnings,
    )
    return json_response(detail, 201, _location(submitted.job_id))


def _location(job_id: str) -> dict[str, str]:
    return {"Location": f"/api/v1/jobs/{job_id}"}


@router.get(
    "",
    operation_id="list_jobs",
    summary="Jobs, newest first unless `sort` is given",
    response_model=Page[JobView],
)
def list_jobs(query: JobQueryParams, caller: Reader, context: AppContextDep) -> Response:
    with context.read() as work:
        page = list_page(work, caller, query)
    return json_response(page)


@router.get(
    "/{job}", operation_id="get_job", summary="One job with its spec and newest attempt", response_model=JobDetail
)
def get_job(job: JobViewer, context: AppContextDep) -> Response:
    """For a queued job with the reason to wait and its position in the queue. Poll with `If-None-Match`."""
    with context.read() as work:
        detail = load_detail(work.session, job.load(work.session), work.now)
    return json_response(detail)


@router.post("/{job}/cancel", operation_id="cancel_job", summary="Cancel a job", response_model=JobDetail)
def cancel_job(job: JobMember, context: AppContextDep, body: ReasonRequest | None = None) -> Response:
    """A queued job is cancelled at once. Replicas of a running job get SIGTERM, and SIGKILL after the grace period."""
    return _apply(context, job, verbs.Verb.CANCEL, body)


@router.post("/{job}/pause", operation_id="pause_job", summary="Pause a job", response_model=JobDetail)
def pause_job(job: JobMember, context: AppContextDep, body: ReasonRequest | None = None) -> Response:
    """The job frees its resources; when it is resumed, it continues from its newest checkpoint."""
    return _apply(context, job, verbs.Verb.PAUSE, body)


@router.post("/{job}/resume", operation_id="resume_job", summary="Resume a paused job", response_model=JobDetail)
def resume_job(job: JobMember, context: AppContextDep, body: ResumeRequest | None = None) -> Response:
    """The job is queued behind jobs of equal priority. With `checkpoint` it resumes from that checkpoint; it may then
    also be queued or running: a running job is stopped and started again.
    """
    if body is None or body.checkpoint is None:
        return _apply(context, job, verbs.Verb.RESUME, body)
    with context.write() as work:
        row = job.load(work.session)
        verbs.lock(work.session, row)
        verbs.resume_from(work, job.caller, row, find_complete(work.session, row, body.checkpoint), body.reason)
        detail = load_detail(work.session, row, work.now)
    return json_response(detail)


def _apply(context: AppContext, job: JobAccess, verb: verbs.Verb, body: ReasonRequest | None) -> Response:
    with context.write() as work:
        row = job.load(work.session)
        verbs.lock(work.session, row)
        verbs.request(work, job.caller, row, verb, body.reason if body else "")
        detail = load_detail(work.session, row, work.now)
    return json_response(detail)


@router.delete("/{job}", operation_id="delete_job", summary="Delete an ended job", status_code=204)
def delete_job(
    job: JobMember,
    context: AppContextDep,
    files: Annotated[bool, Query(description="Also delete its output, if that is a folder of its own.")] = False,
) -> Response:
    """The job is no longer listed. Without `files`, its output stays."""
    if files:
        demand_output_access(context, job, writes=True)
    with context.write() as work:
        row = job.load(work.session)
        verbs.lock(work.session, row)
        verbs.delete(work, job.caller, row)
        remove_output = verbs.output_to_remove(work.session, row) if files else None
        project_id = row.project_id
    if remove_output is not None:
        # After the commit: a crash in between leaves files without a job, never a job without its files.
        remove_output()
        with context.write() as work:
            request_measurement(work.session, project_id, work.now)
    return Response(status_code=204)
