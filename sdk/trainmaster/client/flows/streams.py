"""Following a job: its log lines, events, metrics and end."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from trainmaster.client.calls.build import params, path
from trainmaster.client.calls.jobs import get_job
from trainmaster.client.calls.output import PLAIN
from trainmaster.client.flows.pages import list_job_events
from trainmaster.client.steps import (
    CloseStream,
    Emit,
    Flow,
    GetRetryPolicy,
    HttpRequest,
    NextEvent,
    OpenStream,
    Pause,
    RetryPolicy,
    ServerEvent,
    StreamSilent,
    error_of,
    is_transient,
)
from trainmaster.client.transport import COMMENT
from trainmaster.errors import (
    ServerFailure,
    ServerUnreachable,
    TrainmasterError,
    WaitTimedOut,
    error_from_problem,
)
from trainmaster.wire.jobs import TERMINAL_STATES, EventView, JobDetail, LogLine
from trainmaster.wire.metrics import ChartSeries

# Longer than the interval of the keep-alive comments; a stream without data for longer is dead or stuck.
STREAM_IDLE_S: Final = 45.0
# How long a waiting client trusts that a quiet stream means that nothing happened.
POLL_INTERVAL_S: Final = 15.0

_LINE: Final = TypeAdapter(LogLine)
_EVENT: Final = TypeAdapter(EventView)
_SERIES: Final = TypeAdapter(ChartSeries)


@dataclass(frozen=True, slots=True)
class StateNotice:
    """The state of the followed job has changed."""

    state: str


class NoEvent(Enum):
    IDLE = auto()  # no event for a while; the stream may continue
    CLOSED = auto()  # the server closed the stream


def _error_in_stream(data: str) -> TrainmasterError:
    """The error that ended a running stream, such as a revoked token."""
    try:
        problem = json.loads(data)
        status = int(problem["status"])
    except (ValueError, KeyError, TypeError):
        return ServerFailure(f"The server closed the stream: {data}")
    return error_from_problem(status, problem, where="the stream")


class Subscription:
    """A stream that reconnects from the last event's ID, with exponential backoff.

    Data after the server's greeting resets the policy's patience.
    """

    def __init__(self, request: HttpRequest) -> None:
        self.request = replace(request, headers={**request.headers, **PLAIN, "Accept": "text/event-stream"})
        self._last_id: str | None = None
        self._is_open = False
        self._was_open = False
        self._has_received = False  # since it was opened; the greeting alone does not prove a working stream
        self._failures = 0
        self._paused_s = 0.0

    def next(self) -> Flow[ServerEvent | NoEvent]:
        """The next event, or the reason for its absence. In every case it can be called again.

        Raises:
            TrainmasterError: the server rejects the stream, or is unavailable for longer than the policy's patience.
        """
        policy: RetryPolicy = yield GetRetryPolicy()
        while True:
            error: TrainmasterError
            try:
                if not self._is_open:
                    yield from self._open()
                event: ServerEvent | None = yield NextEvent()
                if event is None:
                    yield from self._close()
                    return NoEvent.CLOSED
                self._last_id = event.id or self._last_id
                if event.kind != COMMENT or self._has_received:
                    self._failures, self._paused_s = 0, 0.0
                self._has_received = True
                if event.kind == COMMENT:
                    return NoEvent.IDLE
                if event.kind == "error":
                    raise _error_in_stream(event.data)
                return event
            except StreamSilent:
                yield from self._close()
                return NoEvent.IDLE
            except TrainmasterError as raised:
                if not is_transient(raised):
                    raise
                error = raised
            yield from self._close()
            yield from self._back_off(policy, error)

    def back_off(self) -> Flow[None]:
        """Pause before reopening a stream that the server closed.

        A server closes its streams when it shuts down; its successor sends the rest.
        """
        policy: RetryPolicy = yield GetRetryPolicy()
        yield from self._back_off(policy, ServerUnreachable("The server closed the stream.", is_sent=True))

    def _back_off(self, policy: RetryPolicy, error: TrainmasterError) -> Flow[None]:
        """Pause before the next try, or raise ``error`` when the policy's patience is exhausted."""
        self._failures += 1
        delay_s = policy.delay_s(self._failures, error.retry_after_s)
        is_hopeless = not self._was_open and self._failures >= policy.tries
        if is_hopeless or self._paused_s + delay_s > policy.stream_patience_s:
            raise error
        self._paused_s += delay_s
        yield Pause(delay_s)

    def _open(self) -> Flow[None]:
        request = self.request
        if self._last_id is not None:
            request = replace(request, headers={**request.headers, "Last-Event-ID": self._last_id})
        answer = yield OpenStream(request)
        if answer is not None:
            raise error_of(request, answer)
        self._is_open = self._was_open = True
        self._has_received = False

    def _close(self) -> Flow[None]:
        self._is_open = False
        yield CloseStream()


def watch_job(job: str) -> Flow[None]:
    """Each :class:`LogLine` until the job has ended, and a :class:`StateNotice` when its state changes."""
    return _log_stream(job, params(follow=True), follow=True, with_states=True)


def stream_logs(
    job: str,
    *,
    follow: bool = False,
    attempt: int | None = None,
    rank: int | None = None,
    role: str | None = None,
    index: int | None = None,
    search: str | None = None,
    level: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    tail_lines: int | None = None,
) -> Flow[None]:
    """The log lines of all replicas with their times.

    After a broken connection the stream resumes without duplicate or missing lines.

    Args:
        follow: continue until the job has ended.
        attempt: number of an attempt; default: the newest, with ``follow`` also later ones.
        rank, role, index: only these replicas.
        search: only lines that match this regular expression.
        level: only lines of at least this level: debug, info, warning, error or critical.
        since, until: only lines in this time range; with a time zone.
        tail_lines: only so many of the existing lines per replica.
    """
    query = params(
        attempt=attempt,
        rank=rank,
        role=role,
        index=index,
        search=search,
        level=level,
        since=since,
        until=until,
        follow=follow,
        tail_lines=tail_lines,
    )
    return _log_stream(job, query, follow=follow, with_states=False)


def _log_stream(job: str, query: tuple[tuple[str, str], ...], *, follow: bool, with_states: bool) -> Flow[None]:
    if follow:
        # A name refers to the newest job of that name, which may be another job after a reconnect.
        job = (yield from get_job(job)).id
    at = path("/jobs/{job}/logs/stream", job=job)
    stream = Subscription(HttpRequest("GET", at, query, read_timeout_s=STREAM_IDLE_S))
    # Not every line has an ID: after a reconnect the server may repeat some lines.
    offsets: dict[tuple[int, str, int], int] = {}
    while True:
        event = yield from stream.next()
        match event:
            case ServerEvent("line", data, _):
                line = _LINE.validate_json(data)
                source = (line.attempt, line.role, line.index)
                if line.offset > offsets.get(source, -1):
                    offsets[source] = line.offset
                    yield Emit(line)
            case ServerEvent("state", data, _) if with_states:
                yield Emit(StateNotice(_state_of(data)))
            case ServerEvent("end", _, _):
                return
            case NoEvent.CLOSED if not follow:
                return
            case NoEvent.CLOSED:
                yield from stream.back_off()
            case _:
                pass


def stream_metrics(
    job: str,
    *,
    names: Sequence[str] | None = None,
    attempt: int | None = None,
    role: str | None = None,
    index: int | None = None,
    after: str | None = None,
) -> Flow[None]:
    """New points of the job's metrics until it has ended: each a ``ChartSeries`` with the new ``points``.

    After a broken connection the stream resumes where it stopped.

    Args:
        after: a chart's ``cursor``, for points after it. Default: points from now on.
    """
    # A name refers to the newest job of that name, which may be another job after a reconnect.
    job = (yield from get_job(job)).id
    query = params(name=names, attempt=attempt, role=role, index=index, after=after)
    at = path("/jobs/{job}/metrics/stream", job=job)
    stream = Subscription(HttpRequest("GET", at, query, read_timeout_s=STREAM_IDLE_S))
    while True:
        event = yield from stream.next()
        match event:
            case ServerEvent("points", data, _):
                yield Emit(_SERIES.validate_json(data))
            case ServerEvent("end", _, _):
                return
            case NoEvent.CLOSED:
                yield from stream.back_off()
            case _:
                pass


def _state_of(data: str) -> str:
    try:
        value: Any = json.loads(data)
    except ValueError:
        value = data
    return str(value.get("state", "")) if isinstance(value, dict) else str(value)


def follow_events(job: str, *, after: int | None = None) -> Flow[None]:
    """Emit the job's past events and each new event until the job has ended."""
    detail = yield from get_job(job)
    stream = Subscription(_events_request(detail.id, after, STREAM_IDLE_S))
    newest = after or 0
    while True:
        event = yield from stream.next()
        view = _event_of(event)
        if view is not None and view.id > newest:
            newest = view.id
            yield Emit(view)
        ended = isinstance(event, ServerEvent) and event.kind == "end"
        if not ended and (view is None or view.kind.startswith("job.")):
            detail = yield from _refreshed(detail)
            ended = detail.state in TERMINAL_STATES
        if ended:
            yield CloseStream()
            yield from list_job_events(detail.id, after=newest)  # those between the last streamed one and the end
            return
        if event is NoEvent.CLOSED:
            yield from stream.back_off()


def wait_for_job(job: str, *, timeout_s: float | None = None) -> Flow[JobDetail]:
    """Wait for the job's end. Listens to the job's events and fetches the job on state changes.

    Args:
        timeout_s: accurate to the server's keep-alive interval, some seconds.

    Raises:
        WaitTimedOut: the job continues.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    detail = yield from get_job(job)
    stream = Subscription(_events_request(detail.id, None, POLL_INTERVAL_S))
    while detail.state not in TERMINAL_STATES:
        if deadline is not None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise WaitTimedOut(f"The job {detail.name} is {detail.state} after {timeout_s:g} s; it continues.")
            stream.request = replace(stream.request, read_timeout_s=min(POLL_INTERVAL_S, left_s))
        event = yield from stream.next()
        view = _event_of(event)
        if view is None or view.kind.startswith("job."):
            detail = yield from _refreshed(detail)
        if event is NoEvent.CLOSED and detail.state not in TERMINAL_STATES:
            yield from stream.back_off()
    yield CloseStream()
    return detail


def _refreshed(detail: JobDetail) -> Flow[JobDetail]:
    """The job's present state; ``detail`` if the server is unavailable, which the stream tolerates for longer."""
    try:
        return (yield from get_job(detail.id))
    except TrainmasterError as error:
        if not is_transient(error):
            raise
        return detail


def _events_request(job: str, after: int | None, read_timeout_s: float) -> HttpRequest:
    query = params(follow=True, after=after)
    return HttpRequest("GET", path("/jobs/{job}/events", job=job), query, read_timeout_s=read_timeout_s)


def _event_of(event: ServerEvent | NoEvent) -> EventView | None:
    if not isinstance(event, ServerEvent) or not event.data:
        return None
    try:
        return _EVENT.validate_json(event.data)
    except ValidationError:
        return None
