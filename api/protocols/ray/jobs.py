"""Jobs of Ray's client: a row with its request next to each of our jobs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from api.app.unit_of_work import AppContext, UnitOfWork
from api.auth import Caller, Role
from api.jobs import verbs
from api.jobs.schemas import wait_reason_of
from api.jobs.service import Submission, canonical, check_submission, submit
from api.protocols.kit.json_values import milliseconds
from api.protocols.ray.packages import digest_of_package
from api.protocols.ray.requests import JobRequest, job_spec_of, read_environment, translated_message
from core.db.repositories.jobs import view_rows
from core.db.tables import Job, RayJob
from core.domain.errors import InvalidRequest, InvalidSpec, NotFound
from core.domain.jobs.exits import ExitKind
from core.domain.jobs.states import DesiredState, JobState

_LIST_LIMIT: Final = 1_000  # the newest; Ray's client has no pagination
_STATES: Final = {
    JobState.QUEUED: "PENDING",
    JobState.STARTING: "PENDING",
    JobState.PAUSED: "PENDING",
    JobState.RUNNING: "RUNNING",
    JobState.CANCELLING: "RUNNING",
    JobState.SUCCEEDED: "SUCCEEDED",
    JobState.FAILED: "FAILED",
    JobState.EXPIRED: "FAILED",
    JobState.CANCELLED: "STOPPED",
}
# Exits that are Ray's JOB_ENTRYPOINT_COMMAND_ERROR; the message has details.
_OF_PROGRAM: Final = frozenset({ExitKind.USER_ERROR, ExitKind.OUT_OF_MEMORY})
_PROGRAM_ERROR: Final = "JOB_ENTRYPOINT_COMMAND_ERROR"


@dataclass(frozen=True, slots=True)
class RayJobRow:
    row: RayJob
    job: Job


def create(context: AppContext, caller: Caller, project: str, request: JobRequest) -> str:
    """The submission id of a new job.

    Raises:
        InvalidRequest: the id is taken, or the request is invalid or not served.
        NotFound, Forbidden
    """
    submission_id = request.submission_id or f"raysubmit_{secrets.token_urlsafe(12).replace('-', 'x')}"
    environment = read_environment(request.runtime_env)
    with context.read() as work:
        project_id = caller.member_of(work.session, project, "member").project_id
        _demand_new(work.session, project_id, submission_id)
        code = None
        if environment.package:
            try:
                code = digest_of_package(work.session, context, caller, environment.package)
            except NotFound as error:
                raise InvalidRequest(
                    f"runtime_env.working_dir: {error.sentence[:-1]} among those that you uploaded; submit it again "
                    "with the local folder.",
                    field="runtime_env.working_dir",
                ) from error
    spec = job_spec_of(project, submission_id, request, environment, code)
    try:
        submission = check_submission(context, caller, canonical(spec))
        with context.write() as work:
            _submit(work, caller, submission, submission_id, request)
    except InvalidSpec as error:
        raise InvalidRequest(translated_message(error)) from error
    return submission_id


def _submit(work: UnitOfWork, caller: Caller, submission: Submission, submission_id: str, request: JobRequest) -> None:
    project_id = submission.member.project_id
    row = _demand_new(work.session, project_id, submission_id)
    job_id = submit(work, caller, submission, key=None, digest="").job_id
    if row is not None:  # of a job that was deleted
        row.job_id, row.body, row.created_at = job_id, request.stored_fields, work.now
        return
    work.session.add(
        RayJob(
            project_id=project_id,
            submission_id=submission_id,
            job_id=job_id,
            body=request.stored_fields,
            created_at=work.now,
        )
    )
    try:
        work.session.flush()
    except IntegrityError as error:  # a concurrent request with the same id
        raise _taken(submission_id) from error


def _demand_new(session: Session, project_id: str, submission_id: str) -> RayJob | None:
    """The row of a deleted job of this id, if any. Raises ``InvalidRequest`` if it is taken."""
    row = session.get(RayJob, (project_id, submission_id))
    if row is not None and session.get_one(Job, row.job_id).deleted_at is None:
        raise _taken(submission_id)
    return row


def _taken(submission_id: str) -> InvalidRequest:
    return InvalidRequest(
        f"Job with submission_id {submission_id} already exists. Please use a different submission_id.",
        field="submission_id",
    )


# --- reading ---------------------------------------------------------------------------------------------------------


def find(session: Session, caller: Caller, project: str, ref: str, role: Role) -> RayJobRow:
    """``ref``: the submission id, or the id of the job here. Raises ``NotFound`` or ``Forbidden``."""
    if "\0" in project or "\0" in ref:  # which PostgreSQL refuses
        raise NotFound("There is no such job.")
    member = caller.member_of(session, project, role)
    rows = session.execute(
        select(RayJob, Job)
        .join(Job, Job.id == RayJob.job_id)
        .where(
            RayJob.project_id == member.project_id,
            or_(RayJob.submission_id == ref, RayJob.job_id == ref),
            Job.deleted_at.is_(None),
        )
    ).all()
    for row, job in rows:
        if row.submission_id == ref:
            return RayJobRow(row, job)
    if not rows:
        raise NotFound(f"Job {ref[:200]} does not exist.")
    return RayJobRow(*rows[0])


def list_all(session: Session, caller: Caller, project: str) -> list[RayJobRow]:
    """Newest first, at most ``_LIST_LIMIT``."""
    member = caller.member_of(session, project)
    rows = session.execute(
        select(RayJob, Job)
        .join(Job, Job.id == RayJob.job_id)
        .where(RayJob.project_id == member.project_id, Job.deleted_at.is_(None))
        .order_by(RayJob.created_at.desc(), RayJob.submission_id.desc())
        .limit(_LIST_LIMIT)
    )
    return [RayJobRow(row, job) for row, job in rows]


def views(session: Session, jobs: Sequence[RayJobRow], now: datetime) -> list[dict[str, Any]]:
    """``JobDetails`` of each. Two statements."""
    waiting = [row.job.id for row in jobs if is_waiting(row.job)]
    reasons = {row.id: wait_reason_of(row, now) for row in view_rows(session, waiting)}
    return [_view(row, reason.sentence if (reason := reasons.get(row.job.id)) else "") for row in jobs]


def _view(ray_job: RayJobRow, waits: str) -> dict[str, Any]:
    row, job = ray_job.row, ray_job.job
    status = _status_of(job, waits)
    return {
        "type": "SUBMISSION",
        "job_id": job.id,
        "submission_id": row.submission_id,
        "driver_info": None,
        "status": status.status,
        "entrypoint": row.body["entrypoint"],
        "message": status.message,
        "error_type": status.error_type,
        "start_time": milliseconds(job.started_at or job.created_at),
        "end_time": None if job.finished_at is None else milliseconds(job.finished_at),
        "metadata": row.body.get("metadata", {}),
        "runtime_env": row.body.get("runtime_env", {}),
        "driver_agent_http_address": None,
        "driver_node_id": None,
        "driver_exit_code": status.exit_code,
    }


# --- verbs -----------------------------------------------------------------------------------------------------------


def stop(work: UnitOfWork, caller: Caller, ray_job: RayJobRow) -> bool:
    """Request the job's cancellation; false if it has ended."""
    verbs.lock(work.session, ray_job.job)
    if JobState(ray_job.job.state).is_terminal:
        return False
    verbs.request(work, caller, ray_job.job, verbs.Verb.CANCEL, "")
    return True


def delete(work: UnitOfWork, caller: Caller, ray_job: RayJobRow) -> bool:
    """Delete an ended job; false while its last processes are being cleaned up.

    Raises:
        Conflict: it has not ended.
    """
    return verbs.delete_ended(
        work,
        caller,
        ray_job.job,
        lambda: (
            f"Attempted to delete job '{ray_job.row.submission_id}', but it is in a non-terminal state "
            f"{_status_of(ray_job.job, '').status}; stop it first."
        ),
    )


# --- states, and exits as errors -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _RayStatus:
    """``exit_code``: the driver's, once it has exited."""

    status: str
    message: str
    error_type: str | None = None
    exit_code: int | None = None


def is_waiting(job: Job) -> bool:
    return job.state in (JobState.QUEUED, JobState.STARTING)


def _status_of(job: Job, waits: str) -> _RayStatus:
    """``waits``: the planner's wait reason."""
    state = JobState(job.state)
    status = _STATES[state]
    if not state.is_terminal:
        return _RayStatus(status, _message(job, state, waits))
    job_exit = job.exit or {}
    code = job_exit.get("exit_code")
    sentence = str(job_exit.get("sentence") or "")
    if state is JobState.SUCCEEDED:
        return _RayStatus(status, "Job finished successfully.", exit_code=code)
    is_of_program = state is JobState.FAILED and job_exit.get("kind") in {kind.value for kind in _OF_PROGRAM}
    return _RayStatus(status, sentence or f"The job is {state.value}.", _PROGRAM_ERROR if is_of_program else None, code)


def _message(job: Job, state: JobState, waits: str) -> str:
    if job.desired_state == DesiredState.CANCEL or state is JobState.CANCELLING:
        return "Job is being stopped."
    if state is JobState.RUNNING:
        return "Job is currently running."
    if state is JobState.PAUSED:
        return "Job is paused; `trainmaster resume` lets it go on."
    return f"Job has not started yet. {waits}".strip()
