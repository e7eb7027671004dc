from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Query
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import AttemptView

from api.attempts.schemas import attempt_view
from api.auth import JobViewer
from api.cursors import make_cursor, read_cursor
from api.routing import new_router
from api.work import PlatformDep
from core.db.repositories.attempts import attempt_by_number, attempts_of_job
from core.domain.errors import NotFound

router = new_router("attempts", "/jobs/{job}/attempts")


_NUMBER_LIMIT: Final = 2**31 - 1  # the column's


@router.get("", operation_id="list_attempts", summary="The launches of the gang, oldest first")
def list_attempts(
    job: JobViewer,
    platform: PlatformDep,
    after: Annotated[int, Query(ge=0, le=_NUMBER_LIMIT, description="Only attempts with larger numbers.")] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=500, description="`next_cursor` of the page before.")] = None,
) -> Page[AttemptView]:
    if cursor is not None:
        (found,) = read_cursor(cursor, (int,))
        after = max(0, min(int(found), _NUMBER_LIMIT))
    with platform.read() as work:
        rows = attempts_of_job(work.session, job.load(work.session).id, after=after, limit=limit + 1)
        items = [attempt_view(*row) for row in rows[:limit]]
    return Page(items=items, next_cursor=make_cursor(items[-1].number) if len(rows) > limit else None)


@router.get("/{number}", operation_id="get_attempt", summary="One launch with its replicas")
def get_attempt(
    job: JobViewer, number: Annotated[int, Path(ge=1, le=_NUMBER_LIMIT)], platform: PlatformDep
) -> AttemptView:
    with platform.read() as work:
        row = job.load(work.session)
        found = attempt_by_number(work.session, row.id, number)
        if found is None:
            raise NotFound(f"Job {job.ref!r} has no attempt {number}; it has had {row.attempt_count}.")
        return attempt_view(*found)
