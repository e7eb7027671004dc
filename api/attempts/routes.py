from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import Path, Query
from pydantic import Field
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import AttemptView, ReplicaView

from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.attempts.schemas import attempt_view, replica_views
from api.auth import JobAccess, JobViewer
from api.http.paging import PageParams, PageQuery, cut, make_cursor, read_cursor
from api.http.routing import new_router
from core.db.repositories.attempts import (
    attempt_by_number,
    attempts_of_job,
    bare_attempt,
    replica_by_name,
    replicas_of_attempt,
)
from core.db.tables import Attempt
from core.domain.errors import NotFound

router = new_router("attempts", "/jobs/{job}/attempts")

_NUMBER_LIMIT: Final = 2**31 - 1  # the column's
_REPLICA: Final = re.compile(r"(.+)-(0|[1-9][0-9]{0,6})")

Number = Annotated[int, Path(ge=1, le=_NUMBER_LIMIT)]


class AttemptQuery(PageQuery):
    """Filter of a job's attempts."""

    after: Annotated[int, Field(ge=0, le=_NUMBER_LIMIT, description="Only attempts with larger numbers.")] = 0


@router.get("", operation_id="list_attempts", summary="The attempts of a job, oldest first")
def list_attempts(job: JobViewer, context: AppContextDep, query: Annotated[AttemptQuery, Query()]) -> Page[AttemptView]:
    after = query.after if query.cursor is None else _number_in(query.cursor)
    with context.read() as work:
        found = attempts_of_job(work.session, job.load(work.session).id, after=after, limit=query.limit + 1)
        rows, has_more = cut(found, query.limit)
        items = [attempt_view(*row) for row in rows]
    return Page(items=items, next_cursor=make_cursor(items[-1].number) if has_more else None)


@router.get("/{number}", operation_id="get_attempt", summary="One attempt with its replicas")
def get_attempt(job: JobViewer, number: Number, context: AppContextDep) -> AttemptView:
    with context.read() as work:
        row = job.load(work.session)
        found = attempt_by_number(work.session, row.id, number)
        if found is None:
            raise _no_attempt(job, number, row.attempt_count)
        return attempt_view(*found)


@router.get("/{number}/replicas", operation_id="list_replicas", summary="The replicas of one attempt, in rank order")
def list_replicas(job: JobViewer, number: Number, context: AppContextDep, page: PageParams) -> Page[ReplicaView]:
    after = -1 if page.cursor is None else _number_in(page.cursor)
    with context.read() as work:
        attempt = _attempt(work, job, number)
        found = replicas_of_attempt(work.session, attempt.id, after=after, limit=page.limit + 1)
        rows, has_more = cut(found, page.limit)
        items = replica_views(attempt, rows)
    return Page(items=items, next_cursor=make_cursor(rows[-1].rank) if has_more else None)


@router.get("/{number}/replicas/{name}", operation_id="get_replica", summary="One replica of one attempt")
def get_replica(job: JobViewer, number: Number, name: str, context: AppContextDep) -> ReplicaView:
    """`name` is `<role>-<index>`, such as `worker-0`."""
    with context.read() as work:
        attempt = _attempt(work, job, number)
        parts = _REPLICA.fullmatch(name)
        found = replica_by_name(work.session, attempt.id, parts[1], int(parts[2])) if parts else None
        if found is None:
            raise NotFound(f"Attempt {number} of job {job.ref!r} has no replica {name!r}; `GET …/replicas` lists them.")
        return replica_views(attempt, [found])[0]


def _attempt(work: UnitOfWork, job: JobAccess, number: int) -> Attempt:
    row = job.load(work.session)
    attempt = bare_attempt(work.session, row.id, number)
    if attempt is None:
        raise _no_attempt(job, number, row.attempt_count)
    return attempt


def _no_attempt(job: JobAccess, number: int, count: int) -> NotFound:
    return NotFound(f"Job {job.ref!r} has no attempt {number}; it has {count}.")


def _number_in(cursor: str) -> int:
    (number,) = read_cursor(cursor, (int,))
    return max(0, min(int(number), _NUMBER_LIMIT))
