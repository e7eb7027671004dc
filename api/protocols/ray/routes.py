"""Ray's Jobs API for ``ray.job_submission.JobSubmissionClient`` and ``ray job``: an adapter over our jobs.

https://docs.ray.io/en/latest/cluster/running-applications/job-submission/rest.html

Not part of our OpenAPI document: Ray defines and versions it. The client takes a path in its address, so a project's
jobs are at ``http://host:port/ray/<project>``, and those of the project ``default`` at ``http://host:port/ray``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

import anyio
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Body, Depends, Path, Request, Response, WebSocket
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocketDisconnect

from api.app.graceful_shutdown import GracefulShutdown
from api.app.unit_of_work import AppContext, AppContextDep, get_app_context
from api.auth import Caller, Reader, Writer, bearer_caller
from api.events.service import watch_of
from api.http.routing import content_length
from api.jobs.schemas import wait_reason_of
from api.protocols.kit.json_values import answer
from api.protocols.kit.protocol_route import ProtocolRoute
from api.protocols.kit.streams import limiter_of, new_log_text
from api.protocols.ray import jobs, packages
from api.protocols.ray.jobs import is_waiting
from api.protocols.ray.requests import ROLE, read_job
from core.db.repositories.jobs import view_row
from core.domain.errors import (
    AttemptEnded,
    Conflict,
    Forbidden,
    InvalidRequest,
    InvalidSpec,
    NotFound,
    TrainmasterError,
    Unavailable,
)
from core.domain.jobs.states import JobState
from core.storage.logs.files import LINE_LIMIT, JobLogs, parse_line
from core.storage.logs.merge import LogMerge, Selection, newest_position
from core.storage.volumes import job_output


class RayRoute(ProtocolRoute):
    """Answers errors as Ray's dashboard does: in plain text, with the platform's statuses but for a few.

    Ray has no error codes: a client sees the status and the text, after ``Request failed with status code``.
    """

    statuses = {AttemptEnded: 403, InvalidRequest: 400, InvalidSpec: 400}  # noqa: RUF012 (a ClassVar of its base)
    codes = {500: ""}  # noqa: RUF012

    @classmethod
    def error_response(cls, status: int, code: str, message: str) -> Response:
        del code
        return PlainTextResponse(message.removesuffix("."), status)  # the client adds a full stop of its own


router = APIRouter(route_class=RayRoute, include_in_schema=False)

RAY_VERSION: Final = "2.60.0"  # the tested client; clients choose features by the server's version
_API_VERSION: Final = "4"  # of Ray's Jobs API: the client streams logs from 1 on
PREFIXES: Final = ("/ray", "/ray/{project}")
_DEFAULT: Final = "default"
# A deletion polls so often for the end of the job's last processes; seconds between two polls.
DELETION_POLLS: Final = 80
POLL_S: Final = 0.25
_READERS: Final = 16  # disk reads of all tails together
# Limit of one response with a driver's log; earlier lines are on the job's page.
TEXT_LIMIT: Final = 16 * 2**20
_DRIVER_LOG: Final = Selection(role=ROLE, index=0)
# Seconds between two reads of the file, and of the job's status.
_LOG_POLL_S: Final = 0.25
_STATUS_POLL_S: Final = 1.0
_DRIVER: Final = f"{ROLE}-0"
# RFC 6455, 7.4: server shutdown; the stream broke.
_GOING_AWAY, _BROKEN = 1001, 1011


async def _project(request: Request) -> str:
    name: str = request.path_params.get("project", _DEFAULT)
    return name


Project = Annotated[str, Depends(_project)]
Ref = Annotated[str, Path(max_length=200)]
Name = Annotated[str, Path(max_length=300)]


def get_version(project: Project, caller: Reader, context: AppContextDep) -> Response:
    """The client's first request. It shows the message of a 403, but a 404 only as a missing Ray server."""
    try:
        with context.read() as work:
            caller.member_of(work.session, project)
    except NotFound as error:
        raise Forbidden(error.sentence) from error
    return answer({"version": _API_VERSION, "ray_version": RAY_VERSION, "ray_commit": "", "session_name": project})


def get_package(protocol: Name, name: Name, caller: Reader, context: AppContextDep) -> Response:
    packages.check_package_name(protocol, name)
    with context.read() as work:
        packages.digest_of_package(work.session, context, caller, name)
    return Response()


async def put_package(
    protocol: Name, name: Name, project: Project, request: Request, caller: Writer, context: AppContextDep
) -> Response:
    packages.check_package_name(protocol, name)
    await run_in_threadpool(_demand_member, context, caller, project)
    announced = content_length(request.headers.get("content-length", "")) or 0
    await packages.upload(context, caller, name, request.stream(), announced)
    return Response()


def submit_job(
    body: Annotated[dict[str, Any], Body()], project: Project, caller: Writer, context: AppContextDep
) -> Response:
    submission_id = jobs.create(context, caller, project, read_job(body))
    return answer({"job_id": submission_id, "submission_id": submission_id})


def list_jobs(project: Project, caller: Reader, context: AppContextDep) -> Response:
    with context.read() as work:
        listed = jobs.list_all(work.session, caller, project)
        return answer(jobs.views(work.session, listed, work.now))


def get_job(ref: Ref, project: Project, caller: Reader, context: AppContextDep) -> Response:
    with context.read() as work:
        job = jobs.find(work.session, caller, project, ref, "viewer")
        return answer(jobs.views(work.session, [job], work.now)[0])


def get_logs(ref: Ref, project: Project, caller: Reader, context: AppContextDep) -> Response:
    return answer({"logs": _read_text(_logs(context, caller, project, ref))})


def stop_job(ref: Ref, project: Project, caller: Writer, context: AppContextDep) -> Response:
    with context.write() as work:
        job = jobs.find(work.session, caller, project, ref, "member")
        return answer({"stopped": jobs.stop(work, caller, job)})


async def delete_job(ref: Ref, project: Project, caller: Writer, context: AppContextDep) -> Response:
    """Delete a job. ``ray job stop`` returns at the job's end, so a deletion waits for its last processes."""
    for _ in range(DELETION_POLLS):
        if await run_in_threadpool(_delete, context, caller, project, ref):
            return answer({"deleted": True})
        await anyio.sleep(POLL_S)
    raise Conflict(f"The last processes of job {ref} are still being cleaned up; try again in a moment.")


def _delete(context: AppContext, caller: Caller, project: str, ref: str) -> bool:
    with context.write() as work:
        return jobs.delete(work, caller, jobs.find(work.session, caller, project, ref, "member"))


def _demand_member(context: AppContext, caller: Caller, project: str) -> None:
    with context.read() as work:
        caller.member_of(work.session, project, "member")


def _logs(context: AppContext, caller: Caller, project: str, ref: str) -> JobLogs:
    with context.read() as work:
        job = jobs.find(work.session, caller, project, ref, "viewer").job
        return JobLogs(job_output(work.session, job), job.id)


# --- the tail --------------------------------------------------------------------------------------------------------


async def tail_logs(websocket: WebSocket, ref: Ref) -> None:
    """Send the driver's lines as text messages until the job ends."""
    context = get_app_context(websocket)
    project = websocket.path_params.get("project", _DEFAULT)
    try:
        caller = await bearer_caller(websocket, context)
        logs = await run_in_threadpool(_logs, context, caller, project, ref)
    except TrainmasterError as error:
        await websocket.send_denial_response(RayRoute.error_response(error.status, "", error.sentence))
        return

    async def read_status() -> _DriverStatus:
        # Revoked tokens and lost roles end the stream; the caller is cached for some seconds, so this is cheap.
        now_caller = await bearer_caller(websocket, context)
        return await run_in_threadpool(_read_status, context, now_caller, project, ref)

    await websocket.accept()
    watch = watch_of(websocket, context)
    shutdown: GracefulShutdown = websocket.app.state.shutdown
    limiter = limiter_of(websocket.app.state, "ray_log_readers", _READERS)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_until_disconnected, websocket, tasks.cancel_scope.cancel)
        try:
            async with watch.subscribe():
                lines = _follow_log(logs, read_status, watch.wait, shutdown=shutdown, limiter=limiter)
                async for text in lines:
                    await websocket.send_text(text)
            await websocket.close(_GOING_AWAY if shutdown.is_stopping else 1000)
        except TrainmasterError as error:
            await websocket.close(_BROKEN, error.sentence[:100])
        except WebSocketDisconnect:
            pass  # the client closed the connection
        tasks.cancel_scope.cancel()


async def _until_disconnected(websocket: WebSocket, then: Callable[[], None]) -> None:
    """Wait for the disconnect, which the client sends or the server's pings detect."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass
    then()


def _read_status(context: AppContext, caller: Caller, project: str, ref: str) -> _DriverStatus:
    with context.read() as work:
        job = jobs.find(work.session, caller, project, ref, "viewer").job
        reason = wait_reason_of(view_row(work.session, job.id), work.now) if is_waiting(job) else None
        # The reason of the first moments changes before a user can read it.
        is_shown = reason is not None and reason.code != "just_queued"
        return _DriverStatus(
            JobState(job.state).is_terminal, reason.sentence if reason is not None and is_shown else ""
        )


async def nothing_here(rest: str, caller: Reader) -> Response:
    """Refuses other parts of Ray's dashboard by name."""
    del caller
    raise NotFound(f"/{rest[:100]} of Ray's dashboard is not served by this platform; the Jobs API is.")


def _add(method: str, path: str, handler: Callable[..., Any]) -> None:
    for prefix in PREFIXES:
        router.add_api_route(f"{prefix}/api/{path}", handler, methods=[method], name=f"ray_{handler.__name__}")


_add("GET", "version", get_version)
_add("GET", "packages/{protocol}/{name}", get_package)
_add("PUT", "packages/{protocol}/{name}", put_package)
_add("POST", "jobs/", submit_job)
_add("GET", "jobs/", list_jobs)
_add("GET", "jobs/{ref}", get_job)
_add("DELETE", "jobs/{ref}", delete_job)
_add("GET", "jobs/{ref}/logs", get_logs)
_add("POST", "jobs/{ref}/stop", stop_job)
for _prefix in PREFIXES:
    router.add_api_websocket_route(f"{_prefix}/api/jobs/{{ref}}/logs/tail", tail_logs, name="ray_tail_logs")
router.add_api_route(
    "/ray/{rest:path}", nothing_here, methods=["GET", "POST", "PUT", "PATCH", "DELETE"], name="ray_nothing_here"
)


@dataclass(frozen=True, slots=True)
class _DriverStatus:
    """``waits``: wait reason; empty if the job does not wait, or the reason is unknown."""

    is_over: bool
    waits: str = ""


def _read_text(logs: JobLogs) -> str:
    """The output of the newest attempt's driver, at most its last ``TEXT_LIMIT`` bytes. Blocks."""
    attempts = logs.attempts()
    if not attempts:
        return ""
    try:
        with logs.opened(attempts[-1], _DRIVER) as fd:
            size = os.fstat(fd).st_size
            start = max(0, size - TEXT_LIMIT)
            data = os.pread(fd, TEXT_LIMIT, start)
    except NotFound:
        return ""
    head = ""
    if start:
        data = data[data.find(b"\n", 0, LINE_LIMIT) + 1 :]
        head = f"[the last {TEXT_LIMIT // 2**20} MiB; the rest is at the job's page]\n"
    lines = data.split(b"\n")
    tail = [] if not lines[-1] else [lines[-1]]
    return head + "".join(f"{parse_line(line).text}\n" for line in [*lines[:-1], *tail])


async def _follow_log(
    logs: JobLogs,
    read_status: Callable[[], Awaitable[_DriverStatus]],
    wait: Callable[[float], Awaitable[bool]],
    *,
    shutdown: GracefulShutdown,
    limiter: CapacityLimiter,
) -> AsyncIterator[str]:
    """Stream lines from the newest attempt's first, across later attempts, until the job ends.

    While the job waits, each new wait reason is sent once. Ends early at shutdown.
    """
    position = await to_thread.run_sync(lambda: newest_position(logs, _DRIVER_LOG, tail_lines=None), limiter=limiter)
    merge = LogMerge(logs, _DRIVER_LOG, position)
    status = await read_status()
    read_at = anyio.current_time()
    last_reason = ""
    while not shutdown.is_stopping:
        if status.waits and status.waits != last_reason:
            last_reason = status.waits
            yield f"[trainmaster] waiting: {last_reason}\n"
        # The status was read before the file, so all output of an ended job is read.
        is_final = status.is_over
        async for text in new_log_text(merge, is_final=is_final, shutdown=shutdown, limiter=limiter):
            yield text
        if is_final:
            return
        has_news = await wait(_LOG_POLL_S)
        if has_news or anyio.current_time() - read_at >= _STATUS_POLL_S:
            read_at = anyio.current_time()
            try:
                status = await read_status()
            except Unavailable:
                continue  # the database is unavailable: keep streaming
