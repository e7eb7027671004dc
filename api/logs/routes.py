"""Logs: the list of files, ranges of one file, and all ranks as one stream."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Final

from anyio import CapacityLimiter, to_thread
from fastapi import Header, Query, Request
from fastapi.responses import Response
from pydantic import AwareDatetime
from starlette.concurrency import run_in_threadpool
from trainmaster.spec.fields import RoleName
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import LogSource

from api.app.fair_use import fair_use_of
from api.app.graceful_shutdown import shutdown_of
from api.app.unit_of_work import AppContextDep
from api.auth import JobViewer, authenticate
from api.events.service import watch_of
from api.http.paging import PageParams
from api.http.ranges import ByteRange, OpenFileResponse
from api.http.routing import new_router
from api.http.sse import stream_document, stream_response
from api.logs import service
from api.logs.stream import LogStream, read_cursor
from core.domain.errors import InvalidRequest
from core.storage.logs.files import stamp_at, tail_offset
from core.storage.logs.filters import PATTERN_LIMIT, RANKS, Level, LineSearch
from core.storage.logs.merge import LogMerge, Selection, newest_position

router = new_router("logs")

# Concurrent disk reads of all streams of this process; a read takes some milliseconds.
_READERS: Final = 4
_TAIL_LIMIT: Final = 100_000

AttemptQuery = Annotated[int | None, Query(ge=1, le=10**9, description="Number of the attempt.")]
TailQuery = Annotated[int | None, Query(ge=0, le=_TAIL_LIMIT, description="Only the last lines of each file, so many.")]


@router.get("/jobs/{job}/logs", operation_id="list_logs", summary="The log files of all attempts")
def list_logs(job: JobViewer, context: AppContextDep, page: PageParams) -> Page[LogSource]:
    """One entry per replica that has written, attempts in order, replicas in rank order."""
    return service.sources(service.open_logs(context, job).logs, page)


@router.get(
    "/jobs/{job}/logs/stream",
    operation_id="stream_logs",
    summary="All replicas' lines in order of time, as server-sent events",
    response_class=Response,
    responses=stream_document(
        "`line` (a LogLine; with `batch`, `lines`: a list of them), `state` (the job's state changed), `error` (a "
        "problem), `end` (no more lines). Resume with the last `id` as Last-Event-ID."
    ),
)
async def stream_logs(
    request: Request,
    job: JobViewer,
    context: AppContextDep,
    attempt: AttemptQuery = None,
    rank: Annotated[
        int | None, Query(ge=0, le=10**7, description="Only this process, counted over all replicas.")
    ] = None,
    role: Annotated[RoleName | None, Query()] = None,
    index: Annotated[int | None, Query(ge=0, le=10**6)] = None,
    search: Annotated[
        str | None, Query(max_length=PATTERN_LIMIT, description="Regular expression (RE2) that a line must contain.")
    ] = None,
    level: Annotated[
        Level | None, Query(description="Only lines of at least this severity, as detected in their text.")
    ] = None,
    since: Annotated[AwareDatetime | None, Query(description="Only lines from this time on.")] = None,
    until: Annotated[AwareDatetime | None, Query(description="Only lines up to this time.")] = None,
    follow: Annotated[bool, Query(description="Continue until the job has ended, over its later attempts.")] = False,
    tail_lines: TailQuery = None,
    batch: Annotated[
        bool, Query(description="Send lines that were read together as one event, for clients that render in batches.")
    ] = False,
    last_event_id: Annotated[str | None, Header(description="Resume after this id.")] = None,
) -> Response:
    """Starts with the newest attempt unless `attempt` is given; with `follow`, continues with later attempts."""
    finder = LineSearch(search) if search else None
    resume = read_cursor(last_event_id) if last_event_id else None
    view = await run_in_threadpool(service.open_logs, context, job)
    if rank is not None:
        service.demand_rank(view, rank)
    selection = Selection(
        attempt=attempt,
        role=role,
        index=index,
        rank=rank,
        search=finder,
        level=None if level is None else RANKS[level],
        since=None if since is None else stamp_at(since),
        until=None if until is None else stamp_at(until),
        ranks=view.ranks,
    )
    place = resume
    if place is None:
        place = await run_in_threadpool(newest_position, view.logs, selection, tail_lines=tail_lines)

    async def read_status() -> service.JobStatus:
        # Revoked tokens and lost roles end the stream; both are cached for some seconds, so this is cheap.
        caller = await authenticate(request, context)
        return await to_thread.run_sync(
            service.read_status, context, replace(job, caller=caller), limiter=_limiter(request)
        )

    watch, fair_use = watch_of(request, context), fair_use_of(request)
    stream = LogStream(
        merge=LogMerge(view.logs, selection, place),
        read_status=read_status,
        wait=watch.wait,
        shutdown=shutdown_of(request),
        limiter=_limiter(request),
        first_status=view.status,
        follow=follow,
        in_batches=batch,
        open_streams=lambda: fair_use.streams.total,
    )

    async def watched() -> AsyncIterator[bytes]:
        async with watch.subscribe():
            async for chunk in stream.events():
                yield chunk

    return stream_response(watched(), request, job.caller.user_id)


@router.get(
    "/jobs/{job}/logs/{name}",
    operation_id="read_log",
    summary="One replica's log as text",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
@router.head("/jobs/{job}/logs/{name}", include_in_schema=False)
def read_log(
    job: JobViewer,
    name: str,
    context: AppContextDep,
    attempt: AttemptQuery = None,
    offset: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit_bytes: Annotated[int | None, Query(ge=1, le=2**40)] = None,
    tail_lines: TailQuery = None,
) -> Response:
    """The bytes as they were written, of the newest attempt unless `attempt` is given.

    `X-Next-Offset` is the offset to continue from. `Range` counts from `offset`. `tail_lines` starts so many lines
    before the end.
    """
    if tail_lines is not None and offset:
        raise InvalidRequest("State offset or tail_lines, not both.", field="tail_lines")
    logs = service.open_logs(context, job).logs
    number = attempt if attempt is not None else service.newest_attempt_with(logs, name).attempt
    fd = logs.open(number, name)
    try:
        size = os.fstat(fd).st_size
        start = min(size, offset if tail_lines is None else tail_offset(fd, tail_lines))
        end = size if limit_bytes is None else min(size, start + limit_bytes)
        headers = {"X-Next-Offset": str(end), "X-Attempt": str(number)}
        return OpenFileResponse(fd, media_type="text/plain; charset=utf-8", part=ByteRange(start, end), headers=headers)
    except BaseException:
        os.close(fd)
        raise


def _limiter(request: Request) -> CapacityLimiter:
    state = request.app.state
    if not hasattr(state, "log_readers"):
        state.log_readers = CapacityLimiter(_READERS)
    limiter: CapacityLimiter = state.log_readers
    return limiter
