"""Lists of jobs: filters as they come in the query, pages by cursor."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import JobState, JobView

from api.auth import Caller
from api.cursors import bad_cursor, make_cursor, read_cursor
from api.jobs.schemas import job_view
from api.work import Work
from core.db.repositories.jobs import NOT_RUN, JobFilter, Position, list_jobs, runs_of
from core.domain.errors import InvalidRequest

_MANY: Final = 50  # values of one filter

Text = Annotated[str, Field(max_length=300)]


class JobQuery(BaseModel):
    """The filters of a list of jobs, newest first. A repeated one means any of its values; labels must all hold."""

    model_config = ConfigDict(extra="forbid")

    project: Annotated[list[Text], Field(max_length=_MANY, description="Names of projects.")] = []
    state: Annotated[list[JobState], Field(max_length=_MANY)] = []
    label: Annotated[list[Text], Field(max_length=_MANY, description="`key=value`, or `key` for any value.")] = []
    role: Annotated[list[Text], Field(max_length=_MANY, description="Has such a role: worker, ps, …")] = []
    name: Annotated[list[Text], Field(max_length=_MANY, description="The name; `digits-*` for all that begin so.")] = []
    user: Annotated[list[Text], Field(max_length=_MANY)] = []
    since: Annotated[datetime | None, Field(description="Submitted then or later; without an offset: UTC.")] = None
    until: Annotated[datetime | None, Field(description="Submitted before.")] = None
    search: Annotated[str, Field(max_length=100, description="Part of the name or of a label's value, or an id.")] = ""
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: Annotated[str | None, Field(max_length=500, description="`next_cursor` of the page before.")] = None


JobQueryParams = Annotated[JobQuery, Query()]


def list_page(work: Work, caller: Caller, query: JobQuery) -> Page[JobView]:
    """One page of the jobs that the caller may see. Two statements.

    Raises:
        NotFound: a project that the caller may not know of.
        InvalidRequest: a filter or the cursor cannot be read.
    """
    before = None if query.cursor is None else _position(query.cursor)
    rows = list_jobs(work.session, _filter(work.session, caller, query), limit=query.limit + 1, before=before)
    page = rows[: query.limit]
    runs = runs_of(work.session, [row.id for row in page if row.attempt_count])
    items = [job_view(row, run=runs.get(row.id, NOT_RUN), now=work.now) for row in page]
    cursor = make_cursor(page[-1].created_at.isoformat(), page[-1].id) if len(rows) > query.limit else None
    return Page[JobView].model_construct(items=items, next_cursor=cursor)


def _filter(session: Session, caller: Caller, query: JobQuery) -> JobFilter:
    project_ids: tuple[str, ...] | None = None if caller.is_admin else tuple(caller.projects)
    if query.project:
        project_ids = tuple(caller.member_of(session, name).project_id for name in query.project)
    return JobFilter(
        project_ids=project_ids,
        states=tuple(query.state),
        labels=tuple(_label(text) for text in query.label),
        roles=tuple(query.role),
        names=tuple(query.name),
        users=tuple(query.user),
        since=_utc(query.since),
        until=_utc(query.until),
        search=_plain(query.search, "search"),
    )


def _label(text: str) -> tuple[str, str | None]:
    key, equals, value = _plain(text, "label").partition("=")
    if not key:
        raise InvalidRequest("label: write it as key=value, or as key for any value.", field="label")
    return key, value if equals else None


def _plain(text: str, field: str) -> str:
    if "\0" in text:
        raise InvalidRequest(f"{field}: holds a NUL character; remove it.", field=field)
    return text.strip()


def _utc(at: datetime | None) -> datetime | None:
    if at is None:
        return None
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError as error:
        raise InvalidRequest("since and until: such a time is out of range.", field="since") from error


def _position(cursor: str) -> Position:
    created_at, job_id = read_cursor(cursor, (str, str))
    try:
        at = datetime.fromisoformat(created_at)
    except ValueError as error:
        raise bad_cursor() from error
    if at.tzinfo is None or "\0" in job_id:
        raise bad_cursor()
    return Position(at, job_id)
