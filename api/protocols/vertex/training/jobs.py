"""Shared by all job-backed collections: a row with the client's fields next to each of our jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from sqlalchemy import ColumnElement, literal, select, tuple_
from sqlalchemy.orm import Session

from api.app.unit_of_work import AppContext, UnitOfWork
from api.auth import Caller, Role
from api.http.cursors import make_cursor
from api.jobs import verbs
from api.jobs.service import Submission, canonical, check_submission, submit
from api.protocols.kit.json_values import timestamp
from api.protocols.vertex.error_translation import list_position, translated_errors
from api.protocols.vertex.filters import job_vocabulary, parse_filter
from api.protocols.vertex.names import ANY_LOCATION, Parent, member_of
from api.protocols.vertex.proto import Message
from api.protocols.vertex.table import table_of
from api.protocols.vertex.training.mapping import JobOrder, job_spec_of
from api.protocols.vertex.training.placement_check import check_placement
from api.protocols.vertex.training.states import JOB_STATES, PIPELINE_STATES, error_of, state_of
from core.db.rows import AnySelect
from core.db.tables import Job, Study, Trial, UtcDateTime, VertexResource
from core.domain.errors import InvalidRequest, NotFound

PAGE: Final = 100
PAGE_LIMIT: Final = 1_000
# Rows that one page may scan; the next page continues after them.
_SCANNED: Final = 5_000
_LABELS: Final = 64


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
        raise InvalidRequest(f"{message.at('displayName')}: Required field is not set.", field="display_name")
    labels = message.text_map("labels")
    if len(labels) > _LABELS or any(len(text) > 63 for pair in labels.items() for text in pair):
        raise InvalidRequest(
            f"{message.at('labels')}: at most {_LABELS} labels of at most 63 characters.", field="labels"
        )
    return CommonFields(name, labels)


def create(
    context: AppContext,
    caller: Caller,
    parent: Parent,
    order: JobOrder,
    bodies: dict[str, dict[str, Any]],
    also: Callable[[UnitOfWork, str], None] | None = None,
) -> str:
    """Submit the job and store its resources: ``bodies`` by collection. Returns the job's id.

    ``also`` runs in the same transaction with the job's id.
    """
    with translated_errors(order.spec):
        spec = canonical(job_spec_of(context, caller, order, table_of(context)))
        submission = check_submission(context, caller, spec)
    check_placement(context, caller, submission)
    common = CommonFields(order.display_name, dict(order.labels))
    return submit_resources(context, caller, parent, submission, common, bodies, also)


def submit_resources(
    context: AppContext,
    caller: Caller,
    parent: Parent,
    submission: Submission,
    common: CommonFields,
    bodies: dict[str, dict[str, Any]],
    also: Callable[[UnitOfWork, str], None] | None = None,
) -> str:
    """As ``create``, for a checked submission."""
    with context.write() as work:
        submitted = submit(work, caller, submission, key=None, digest="")
        for collection, body in bodies.items():
            work.session.add(
                VertexResource(
                    collection=collection,
                    id=submitted.job_id,
                    project_id=submission.member.project_id,
                    job_id=submitted.job_id,
                    location=parent.location,
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


def demand_member(context: AppContext, caller: Caller, parent: Parent, role: Role, *, verb: str) -> None:
    if parent.location == ANY_LOCATION:
        raise InvalidRequest("A location is needed; write one such as us-central1.", field="location")
    with context.read() as work:
        member_of(work.session, caller, parent, role, verb=verb)


def find(
    session: Session, caller: Caller, parent: Parent, collection: str, resource_id: str, role: Role, *, verb: str
) -> JobResource:
    """Raises ``NotFound`` (none, deleted, or of another project or location) or ``Forbidden``."""
    member = member_of(session, caller, parent, role, verb=verb)
    row = session.execute(
        select(VertexResource, Job)
        .join(Job, Job.id == VertexResource.job_id)
        .where(
            VertexResource.collection == collection,
            VertexResource.id == resource_id,
            VertexResource.project_id == member.project_id,
            VertexResource.location == parent.location,
            Job.deleted_at.is_(None),
        )
    ).one_or_none()
    if row is not None:
        return JobResource(row[0], row[1], parent)
    trial = _find_trial(session, parent, member.project_id, resource_id) if collection == "customJobs" else None
    if trial is None:
        raise NotFound(f"{collection} {parent.name_of(collection, resource_id)} is not found.")
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


def times_of(job: Job, created_at: datetime) -> dict[str, str]:
    times = {
        "createTime": created_at,
        "startTime": job.started_at,
        "endTime": job.finished_at,
        "updateTime": job.updated_at,
    }
    return {name: timestamp(at) for name, at in times.items() if at is not None}


def status_of(found: JobResource, prefix: str) -> dict[str, Any]:
    """State, error, times and labels."""
    error = error_of(found.job)
    return {
        "name": found.name,
        "displayName": found.row.display_name,
        "state": f"{prefix}{state_of(found.job)}",
        **({} if error is None else {"error": error}),
        **times_of(found.job, found.row.created_at),
        **({"labels": found.row.labels} if found.row.labels else {}),
    }


# --- lists -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListQuery:
    filter: str = ""
    page_size: int = PAGE
    page_token: str = ""
    order_by: str = ""


def list_page(
    work: UnitOfWork,
    caller: Caller,
    parent: Parent,
    collection: str,
    query: ListQuery,
    view: Callable[[JobResource], dict[str, Any]],
) -> dict[str, Any]:
    """Newest first. With a selective filter a page may be short and still have a next page."""
    demand_newest_first(query.order_by)
    member = member_of(work.session, caller, parent, "viewer", verb=f"{collection}.list")
    states = PIPELINE_STATES if collection == "trainingPipelines" else JOB_STATES
    test = parse_filter(query.filter, job_vocabulary(states))
    limit = min(query.page_size or PAGE, PAGE_LIMIT)
    statement = (
        select(VertexResource, Job)
        .join(Job, Job.id == VertexResource.job_id)
        .where(
            VertexResource.collection == collection,
            VertexResource.project_id == member.project_id,
            Job.deleted_at.is_(None),
        )
        .order_by(VertexResource.created_at.desc(), VertexResource.id.desc())
    )
    if parent.location != ANY_LOCATION:
        statement = statement.where(VertexResource.location == parent.location)
    if query.page_token:
        statement = statement.where(_after(*list_position(query.page_token)))
    items: list[dict[str, Any]] = []
    last: VertexResource | None = None  # the last row that was looked at
    for number, (row, job) in enumerate(_in_batches(work.session, statement, limit)):
        if len(items) == limit or number == _SCANNED:
            return _page(collection, items, last)
        found = JobResource(row, job, Parent(parent.project, row.location, parent.own))
        item = view(found)
        if test(partial(_field, found, item)):
            items.append(item)
        last = row
    return _page(collection, items, None)


def demand_newest_first(order_by: str) -> None:
    """Raises ``InvalidRequest`` for another order; the SDK sorts lists itself."""
    if order_by.strip() not in ("", "create_time desc", "createTime desc"):
        raise InvalidRequest(
            'orderBy: only "create_time desc" is served, which is the order in any case.', field="order_by"
        )


def _page(collection: str, items: list[dict[str, Any]], last: VertexResource | None) -> dict[str, Any]:
    token = {} if last is None else {"nextPageToken": make_cursor(last.created_at.isoformat(), last.id)}
    return {**({collection: items} if items else {}), **token}


def _in_batches(session: Session, statement: AnySelect, limit: int) -> Iterator[tuple[VertexResource, Job]]:
    """All rows, in batches of the page size."""
    place = None
    while True:
        query = statement if place is None else statement.where(_after(*place))
        batch = session.execute(query.limit(limit + 1)).all()
        yield from ((row, job) for row, job in batch)
        if len(batch) <= limit:
            return
        place = batch[-1][0].created_at, batch[-1][0].id


def _after(created_at: datetime, resource_id: str) -> ColumnElement[bool]:
    own = tuple_(VertexResource.created_at, VertexResource.id)
    return own < tuple_(literal(created_at, UtcDateTime), literal(resource_id))


def _field(found: JobResource, item: dict[str, Any], name: str) -> Any:
    match name:
        case "labels":
            return found.row.labels
        case "create_time":
            return found.row.created_at
        case "start_time":
            return found.job.started_at
        case "end_time":
            return found.job.finished_at
        case "update_time":
            return found.job.updated_at
        case "display_name":
            return found.row.display_name
        case "training_task_definition":
            return item.get("trainingTaskDefinition")
        case _:
            return item.get(name)


# --- verbs -----------------------------------------------------------------------------------------------------------


def cancel(work: UnitOfWork, caller: Caller, found: JobResource) -> None:
    verbs.lock(work.session, found.job)
    verbs.request(work, caller, found.job, verbs.Verb.CANCEL, "")


def delete(work: UnitOfWork, caller: Caller, found: JobResource) -> bool:
    """Delete an ended job; false while its last processes are being cleaned up.

    Raises:
        Conflict: it has not ended.
    """
    return verbs.delete_ended(
        work,
        caller,
        found.job,
        lambda: f"The resource {found.name} is in state {state_of(found.job)}; cancel it first.",
    )
