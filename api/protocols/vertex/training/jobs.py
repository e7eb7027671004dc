"""Shared by all job-backed collections: a row with the client's fields next to each of our jobs, states and errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller, Role
from api.forecasts.service import why_never
from api.jobs import verbs
from api.jobs.service import Submission, canonical, check_submission, submit
from api.protocols.kit.json_values import timestamps
from api.protocols.kit.vertex_table import table_of
from api.protocols.vertex.filters import job_vocabulary
from api.protocols.vertex.long_running import (
    CANCELLED,
    DEADLINE_EXCEEDED,
    INTERNAL,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    error_status,
)
from api.protocols.vertex.names import ANY_LOCATION, Parent, VertexCall
from api.protocols.vertex.paging import Keyset, ListQuery, list_page
from api.protocols.vertex.proto import Message
from api.protocols.vertex.records.kinds import labels
from api.protocols.vertex.training.mapping import JobOrder, job_spec_of, translated_errors
from api.protocols.vertex.vertex_route import NoCapacity
from core.db.engine import UntypedRow
from core.db.tables import Job, Study, Trial, VertexResource
from core.domain.errors import NotFound
from core.domain.jobs.exits import ExitKind
from core.domain.jobs.states import DesiredState, JobState

# Only states that Google's client handles correctly: it waits for ever on EXPIRED, and takes PAUSED for completed.
_STATES: Final = {
    JobState.QUEUED: "QUEUED",
    JobState.STARTING: "PENDING",
    JobState.RUNNING: "RUNNING",
    JobState.PAUSED: "QUEUED",
    JobState.CANCELLING: "CANCELLING",
    JobState.SUCCEEDED: "SUCCEEDED",
    JobState.FAILED: "FAILED",
    JobState.CANCELLED: "CANCELLED",
    JobState.EXPIRED: "FAILED",
}
# https://cloud.google.com/vertex-ai/docs/reference/rest/v1/JobState and PipelineState.
_NAMES: Final = (
    "UNSPECIFIED",
    "QUEUED",
    "PENDING",
    "RUNNING",
    "SUCCEEDED",
    "FAILED",
    "CANCELLING",
    "CANCELLED",
    "PAUSED",
)
_PIPELINE_STATES: Final = tuple(f"PIPELINE_STATE_{name}" for name in _NAMES)
JOB_STATES: Final = tuple(f"JOB_STATE_{name}" for name in (*_NAMES, "EXPIRED", "UPDATING", "PARTIALLY_SUCCEEDED"))
_CODES: Final = {
    ExitKind.CANCELLED: CANCELLED,
    ExitKind.USER_ERROR: INVALID_ARGUMENT,
    ExitKind.DEADLINE: DEADLINE_EXCEEDED,
    ExitKind.OUT_OF_MEMORY: RESOURCE_EXHAUSTED,
    ExitKind.CAPACITY: RESOURCE_EXHAUSTED,
}
_NEWEST: Final = Keyset(VertexResource.created_at, VertexResource.id)
# Rows that one page may scan; the next page continues after them.
_SCANNED: Final = 5_000


def state_of(job: Job) -> str:
    """The state without its prefix, such as ``RUNNING``."""
    state = JobState(job.state)
    if job.desired_state == DesiredState.CANCEL and not state.is_terminal:
        return "CANCELLING"
    return _STATES[state]


def error_of(job: Job) -> dict[str, Any] | None:
    """A ``google.rpc.Status`` if the job ended without success."""
    state = JobState(job.state)
    if not state.is_terminal or state is JobState.SUCCEEDED:
        return None
    job_exit = job.exit or {}
    kinds = {kind.value: code for kind, code in _CODES.items()}
    if state is JobState.CANCELLED:
        code = CANCELLED
    elif state is JobState.EXPIRED:
        code = DEADLINE_EXCEEDED
    else:
        code = kinds.get(str(job_exit.get("kind")), INTERNAL)
    return error_status(code, str(job_exit.get("sentence") or f"The job is {state.value}."))


@dataclass(frozen=True, slots=True)
class JobResource:
    """A resource with its job. ``name``: full name. ``is_trial``: a tuning job's trial; its row is not in the
    database.
    """

    row: VertexResource
    job: Job
    parent: Parent
    is_trial: bool = False

    @property
    def name(self) -> str:
        return self.parent.name_of(self.row.collection, self.row.id)


@dataclass(frozen=True, slots=True)
class CommonFields:
    """Fields of every job resource."""

    display_name: str
    labels: dict[str, str]


def read_common(message: Message) -> CommonFields:
    """Raises ``InvalidRequest``."""
    name = message.text("displayName", 128)
    if not name:
        raise message.missing("displayName")
    return CommonFields(name, labels(message, "labels"))


def create(
    call: VertexCall,
    order: JobOrder,
    bodies: dict[str, dict[str, Any]],
    also: Callable[[UnitOfWork, str], None] | None = None,
) -> str:
    """Submit the job and store its resources: ``bodies`` by collection. Returns the job's id.

    ``also`` runs in the same transaction with the job's id.
    """
    with translated_errors(order.spec):
        spec = canonical(job_spec_of(call, order, table_of(call.context)))
        submission = check_submission(call.context, call.caller, spec)
    check_placement(call, submission)
    common = CommonFields(order.display_name, dict(order.labels))
    return submit_resources(call, submission, common, bodies, also)


def submit_resources(
    call: VertexCall,
    submission: Submission,
    common: CommonFields,
    bodies: dict[str, dict[str, Any]],
    also: Callable[[UnitOfWork, str], None] | None = None,
) -> str:
    """As ``create``, for a checked submission."""
    with call.context.write() as work:
        submitted = submit(work, call.caller, submission, key=None, digest="")
        for collection, body in bodies.items():
            work.session.add(
                VertexResource(
                    collection=collection,
                    id=submitted.job_id,
                    project_id=submission.member.project_id,
                    job_id=submitted.job_id,
                    location=call.parent.location,
                    display_name=common.display_name,
                    labels=common.labels,
                    body=body,
                    created_at=work.now,
                )
            )
        work.session.flush()
        if also is not None:
            also(work, submitted.job_id)
    return submitted.job_id


def check_placement(call: VertexCall, submission: Submission) -> None:
    """Raise ``NoCapacity`` if the planner finds the job infeasible, else as ``why_never``.

    The client would poll an infeasible job for ever without showing a reason. Vertex AI refuses jobs beyond a quota at
    submission; here, jobs that no node could ever run are refused as well.
    """
    reason = why_never(call.context, call.caller, submission)
    if reason is not None:
        raise NoCapacity(
            f"The job can never start here: {reason.sentence} (scheduling.max_wait_duration lets it wait for such a "
            "node.)"
        )


def find(
    session: Session, call: VertexCall, collection: str, resource_id: str, role: Role, *, verb: str
) -> JobResource:
    """Raises ``NotFound`` (none, deleted, or of another project or location) or ``Forbidden``."""
    member = call.member_of(session, role, verb=verb)
    row = session.execute(
        select(VertexResource, Job)
        .join(Job, Job.id == VertexResource.job_id)
        .where(
            VertexResource.collection == collection,
            VertexResource.id == resource_id,
            VertexResource.project_id == member.project_id,
            VertexResource.location == call.parent.location,
            Job.deleted_at.is_(None),
        )
    ).one_or_none()
    if row is not None:
        return JobResource(row[0], row[1], call.parent)
    trial = _find_trial(session, call.parent, member.project_id, resource_id) if collection == "customJobs" else None
    if trial is None:
        raise NotFound(f"{collection} {call.parent.name_of(collection, resource_id)} is not found.")
    return trial


def _find_trial(session: Session, parent: Parent, project_id: str, job_id: str) -> JobResource | None:
    """A trial's job as a custom job, as the tuning job names it."""
    row = session.execute(
        select(Job, Study)
        .join(Trial, Trial.job_id == Job.id)
        .join(Study, Study.id == Trial.study_id)
        .where(
            Job.id == job_id,
            Job.project_id == project_id,
            Job.deleted_at.is_(None),
            Study.deleted_at.is_(None),
            Study.spec["vertex"]["location"].as_string() == parent.location,
        )
    ).one_or_none()
    if row is None:
        return None
    job, client_fields = row[0], row[1].spec["vertex"]
    resource = VertexResource(
        collection="customJobs",
        id=job.id,
        project_id=project_id,
        job_id=job.id,
        location=parent.location,
        display_name=job.name,
        labels=dict(client_fields["labels"]),
        body={"jobSpec": client_fields["body"].get("trialJobSpec", {})},
        created_at=job.created_at,
    )
    return JobResource(resource, job, parent, is_trial=True)


def status_of(resource: JobResource, prefix: str) -> dict[str, Any]:
    """State, error, times and labels."""
    error = error_of(resource.job)
    return {
        "name": resource.name,
        "displayName": resource.row.display_name,
        "state": f"{prefix}{state_of(resource.job)}",
        **({} if error is None else {"error": error}),
        **timestamps(
            createTime=resource.row.created_at,
            startTime=resource.job.started_at,
            endTime=resource.job.finished_at,
            updateTime=resource.job.updated_at,
        ),
        **({"labels": resource.row.labels} if resource.row.labels else {}),
    }


# --- lists -----------------------------------------------------------------------------------------------------------


def list_jobs(
    work: UnitOfWork, call: VertexCall, collection: str, query: ListQuery, view: Callable[[JobResource], dict[str, Any]]
) -> dict[str, Any]:
    """Newest first."""
    query.demand_newest_first()
    member = call.member_of(work.session, "viewer", verb=f"{collection}.list")
    states = _PIPELINE_STATES if collection == "trainingPipelines" else JOB_STATES
    statement = (
        select(VertexResource, Job)
        .join(Job, Job.id == VertexResource.job_id)
        .where(
            VertexResource.collection == collection,
            VertexResource.project_id == member.project_id,
            Job.deleted_at.is_(None),
        )
    )
    if call.parent.location != ANY_LOCATION:
        statement = statement.where(VertexResource.location == call.parent.location)

    def view_of(pair: UntypedRow) -> tuple[dict[str, Any], dict[str, datetime | None]]:
        row, job = pair
        times = {
            "create_time": row.created_at,
            "start_time": job.started_at,
            "end_time": job.finished_at,
            "update_time": job.updated_at,
        }
        return view(JobResource(row, job, Parent(call.parent.project, row.location, call.parent.own))), times

    return list_page(
        work.session,
        statement,
        _NEWEST,
        query,
        view_of,
        collection=collection,
        vocabulary=job_vocabulary(states),
        scanned=_SCANNED,
    )


# --- verbs -----------------------------------------------------------------------------------------------------------


def cancel(work: UnitOfWork, caller: Caller, resource: JobResource) -> None:
    verbs.lock(work.session, resource.job)
    verbs.request(work, caller, resource.job, verbs.Verb.CANCEL, "")


def delete(work: UnitOfWork, caller: Caller, resource: JobResource) -> bool:
    """Delete an ended job; false while its last processes are being cleaned up.

    Raises:
        Conflict: it has not ended.
    """
    return verbs.delete_ended(
        work,
        caller,
        resource.job,
        lambda: f"The resource {resource.name} is in state {state_of(resource.job)}; cancel it first.",
    )
