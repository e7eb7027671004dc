"""Lists of jobs: query filters, and pages by cursor."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import Query
from pydantic import Field
from sqlalchemy.orm import Session
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import JobState, JobView

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller
from api.http.paging import (
    FILTER_LIMIT,
    FilterValues,
    PageQuery,
    bad_cursor,
    make_cursor,
    plain,
    read_cursor,
    read_position,
)
from api.jobs.schemas import job_view
from api.studies.access import StudyAccess
from core.db.engine import UntypedRow
from core.db.repositories.jobs import NOT_RUN, JobCursor, JobFilter, JobSort, list_jobs, runs_of
from core.domain.errors import InvalidRequest

_INTEGER_MAX: Final = 2**31 - 1  # of the priority's column


class JobQuery(PageQuery):
    """The filters of a list of jobs. A repeated filter matches any of its values; labels must all match."""

    project: Annotated[FilterValues, Field(description="Names of projects.")] = ()
    state: Annotated[tuple[JobState, ...], Field(max_length=FILTER_LIMIT)] = ()
    label: Annotated[FilterValues, Field(description="`key=value`, or `key` for any value.")] = ()
    role: Annotated[FilterValues, Field(description="Has such a role: worker, ps, …")] = ()
    name: Annotated[FilterValues, Field(description="The name; `digits-*` for a prefix.")] = ()
    user: FilterValues = ()
    study: Annotated[
        FilterValues,
        Field(
            description="Ids or names of studies: the jobs of their trials, and the final runs of their winners.",
        ),
    ] = ()
    since: Annotated[datetime | None, Field(description="Submitted then or later; without an offset: UTC.")] = None
    until: Annotated[datetime | None, Field(description="Submitted before.")] = None
    search: Annotated[str, Field(max_length=100, description="Part of the name or of a label's value, or an id.")] = ""
    sort: Annotated[JobSort, Field(description="A cursor is valid only for the order that it was made with.")] = (
        JobSort.NEWEST
    )


JobQueryParams = Annotated[JobQuery, Query()]


def list_page(work: UnitOfWork, caller: Caller, query: JobQuery) -> Page[JobView]:
    """One page of the jobs that the caller may see. Two SQL statements, and one or two for each study of the filter.

    Raises:
        NotFound: a project or a study of the filter is hidden from the caller, or does not exist.
        InvalidRequest: a filter or the cursor is invalid.
    """
    before = None if query.cursor is None else _position(query.cursor, query.sort)
    wanted = _filter(work.session, caller, query)
    rows = list_jobs(work.session, wanted, limit=query.limit + 1, before=before, order=query.sort)
    page = rows[: query.limit]
    runs = runs_of(work.session, [row.id for row in page if row.attempt_count])
    items = [job_view(row, run=runs.get(row.id, NOT_RUN), now=work.now) for row in page]
    cursor = _cursor(page[-1], query.sort) if len(rows) > query.limit else None
    return Page[JobView].model_construct(items=items, next_cursor=cursor)


# The type of the sort key in a cursor, next to the time and the id.
_KEYS: Final[dict[JobSort, type]] = {
    JobSort.NAME: str,
    JobSort.PRIORITY: int,
    JobSort.STATE: str,
    JobSort.USER: str,
    JobSort.STARTED: str,  # empty: never
    JobSort.GPUS: int,
}


def _cursor(row: UntypedRow, order: JobSort) -> str:
    place = (row.created_at.isoformat(), row.id)
    match order:
        case JobSort.NEWEST | JobSort.OLDEST:
            return make_cursor(*place)
        case JobSort.STARTED:
            return make_cursor(*place, row.started_at.isoformat() if row.started_at else "")
        case JobSort.GPUS:
            return make_cursor(*place, row.gpu_milli)
        case _:
            return make_cursor(*place, getattr(row, order.value))


def _position(cursor: str, order: JobSort) -> JobCursor:
    if order not in _KEYS:
        return JobCursor(*read_position(cursor))
    made_at, job_id, key = read_cursor(cursor, (str, str, _KEYS[order]))
    place = read_position(make_cursor(made_at, job_id))
    if not isinstance(key, str):
        if abs(key) > _INTEGER_MAX:
            raise bad_cursor()
        return JobCursor(*place, key)
    if order is JobSort.STARTED:
        return JobCursor(*place, read_position(make_cursor(key, job_id))[0] if key else None)
    return JobCursor(*place, plain(key))


def _filter(session: Session, caller: Caller, query: JobQuery) -> JobFilter:
    project_ids = caller.project_ids(session, query.project)
    return JobFilter(
        project_ids=None if project_ids is None else tuple(project_ids),
        states=tuple(query.state),
        labels=tuple(_label(text) for text in query.label),
        roles=tuple(query.role),
        names=tuple(query.name),
        users=tuple(query.user),
        study_ids=tuple(StudyAccess(caller, _plain(ref, "study"), "viewer").load(session)[0].id for ref in query.study),
        since=_utc(query.since),
        until=_utc(query.until),
        search=_plain(query.search, "search"),
    )


def _label(text: str) -> tuple[str, str | None]:
    key, equals, value = _plain(text, "label").partition("=")
    if not key:
        raise InvalidRequest("label: use key=value, or key for any value.", field="label")
    return key, value if equals else None


def _plain(text: str, field: str) -> str:
    if "\0" in text:
        raise InvalidRequest(f"{field}: contains a NUL character; remove it.", field=field)
    return text.strip()


def _utc(at: datetime | None) -> datetime | None:
    if at is None:
        return None
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError as error:
        raise InvalidRequest("since and until: the time is out of range.", field="since") from error
