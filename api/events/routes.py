from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final

from fastapi import Header, Query, Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import EventView

from api.app.graceful_shutdown import shutdown_of
from api.app.unit_of_work import AppContext, AppContextDep
from api.auth import JobAccess, JobViewer, Reader, authenticate
from api.events.service import EventBatch, EventStream, page_of, start_after, watch_of
from api.http.paging import PageQuery
from api.http.routing import json_response, new_router
from api.http.sse import stream_document, stream_response
from core.db.repositories.events import events_of_job, events_of_projects
from core.domain.jobs.states import JobState

router = new_router("events")

LastEventId = Annotated[str | None, Header(description="Resume a broken stream after this id.")]
_STREAM: Final = stream_document(
    "A page; with `follow` a stream: `event` (an EventView), `end` (the job has ended), `error` (a problem)."
)


class JobEventQuery(PageQuery):
    """Filter of a job's events, and whether to follow them."""

    after: Annotated[int | None, Field(ge=0, le=2**63 - 1, description="Only events with larger ids.")] = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    follow: Annotated[bool, Field(description="Stream existing and new events, as server-sent events.")] = False


class EventQuery(JobEventQuery):
    """The same for many jobs."""

    project: Annotated[str | None, Field(max_length=100)] = None


@router.get(
    "/jobs/{job}/events",
    operation_id="list_job_events",
    summary="A job's history, oldest first",
    response_model=Page[EventView],
    responses=_STREAM,
)
async def list_job_events(
    request: Request,
    job: JobViewer,
    context: AppContextDep,
    query: Annotated[JobEventQuery, Query()],
    last_event_id: LastEventId = None,
) -> Response:
    start = start_after(query.after, query.cursor, last_event_id if query.follow else None)
    if not query.follow:
        batch = await run_in_threadpool(_events_of_job, context, job, start, query.limit + 1)
        return _page(batch, query.limit)
    await run_in_threadpool(_events_of_job, context, job, start, 1)  # a 404 must come before the stream begins

    async def read_batch(low: int, batch: int) -> EventBatch:
        # A revoked token and a lost role end the stream; both are cached for some seconds, so this is cheap.
        caller = await authenticate(request, context)
        return await run_in_threadpool(_events_of_job, context, replace(job, caller=caller), low, batch)

    stream = EventStream(read_batch, watch_of(request, context), shutdown_of(request), start).stream()
    return stream_response(stream, request, job.caller.user_id)


@router.get(
    "/events",
    operation_id="list_events",
    summary="The history of all jobs that you may see, oldest first",
    response_model=Page[EventView],
    responses=_STREAM,
)
async def list_events(
    request: Request,
    caller: Reader,
    context: AppContextDep,
    query: Annotated[EventQuery, Query()],
    last_event_id: LastEventId = None,
) -> Response:
    """With `follow` the stream never ends by itself."""
    start = start_after(query.after, query.cursor, last_event_id if query.follow else None)

    async def read_batch(low: int, batch: int) -> EventBatch:
        fresh = await authenticate(request, context)  # includes projects that were created meanwhile

        def read() -> EventBatch:
            with context.read() as work:
                ids = fresh.project_ids(work.session, () if query.project is None else (query.project,))
                rows = events_of_projects(work.session, ids, after=low, limit=batch)
                return EventBatch(rows, work.now, state=None, is_over=False)

        return await run_in_threadpool(read)

    if not query.follow:
        return _page(await read_batch(start, query.limit + 1), query.limit)
    await read_batch(start, 1)
    stream = EventStream(read_batch, watch_of(request, context), shutdown_of(request), start).stream()
    return stream_response(stream, request, caller.user_id)


def _events_of_job(context: AppContext, job: JobAccess, low: int, limit: int) -> EventBatch:
    with context.read() as work:
        # The state is read before the events, so that all events before the job's end are included.
        row = job.load(work.session)
        rows = events_of_job(work.session, row.id, after=low, limit=limit)
        return EventBatch(rows, work.now, state=row.state, is_over=JobState(row.state).is_terminal)


def _page(batch: EventBatch, limit: int) -> Response:
    return json_response(page_of(batch.rows, limit))
