"""Metrics of jobs: series, charts of any window, streams of new points, and resource usage."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final

from fastapi import Header, Path, Query, Request
from fastapi.responses import Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from trainmaster.spec.fields import RoleName
from trainmaster.wire.base import Page
from trainmaster.wire.metrics import (
    MetricKind,
    MetricName,
    MetricObjectView,
    MetricsChart,
    MetricSuggestions,
    MetricView,
    ResourceSummary,
)

from api.app.graceful_shutdown import shutdown_of
from api.app.unit_of_work import AppContextDep
from api.auth import JobAccess, JobViewer, Reader, authenticate
from api.http.paging import PAGE_LIMIT, PageQuery
from api.http.routing import new_router
from api.http.sse import stream_document, stream_response
from api.metrics import resources, service
from api.metrics.columns import Plain, as_json, read_stream_cursor
from api.metrics.service import ChartQuery, MetricStreamer
from core.db.repositories.metrics.reads import ChartWindow, SeriesFilter
from core.domain.errors import InvalidRequest
from core.domain.jobs.states import JobState
from core.domain.metrics import NAME_LIMIT, STEP_LIMIT, SYSTEM, By

router = new_router("metrics")

_NAME_COUNT_LIMIT: Final = 50
_JOB_COUNT_LIMIT: Final = 20

Names = Annotated[
    list[Annotated[str, Query(max_length=NAME_LIMIT)]],
    Query(description="Names of metrics; may be repeated. Unstated: all.", max_length=_NAME_COUNT_LIMIT),
]
AttemptQuery = Annotated[int | None, Query(ge=1, le=10**9, description="Number of the attempt.")]
RoleQuery = Annotated[RoleName | None, Query()]
IndexQuery = Annotated[int | None, Query(ge=0, le=10**6)]
PrefixQuery = Annotated[str, Query(max_length=NAME_LIMIT, description="Only names with this prefix.")]
SystemQuery = Annotated[bool, Query(description="Include the platform's own measurements (system/…).")]
ByQuery = Annotated[By, Query(description="The unit of the window and the buckets: steps, or seconds since 1970.")]
LowQuery = Annotated[float | None, Query(alias="from", allow_inf_nan=False, description="Start of the window.")]
HighQuery = Annotated[float | None, Query(alias="to", allow_inf_nan=False, description="End of the window, included.")]
BucketQuery = Annotated[int, Query(ge=1, le=5000, description="Maximum of points or buckets per series.")]


class MetricQuery(PageQuery):
    """Filter of series."""

    name: Names = []  # noqa: RUF012 (a model's default is copied)
    prefix: PrefixQuery = ""
    attempt: AttemptQuery = None
    role: RoleQuery = None
    index: IndexQuery = None
    kind: MetricKind | None = None
    system: SystemQuery = True


class NameQuery(PageQuery):
    """Filter of names."""

    prefix: PrefixQuery = ""
    kind: MetricKind | None = None
    system: SystemQuery = True
    limit: Annotated[int, Field(ge=1, le=1000)] = 200


class ObjectQuery(PageQuery):
    """The series whose objects to list."""

    name: Annotated[str, Field(max_length=NAME_LIMIT)]
    kind: MetricKind | None = None
    attempt: AttemptQuery = None
    role: RoleQuery = None
    index: IndexQuery = None
    limit: Annotated[int, Field(ge=1, le=PAGE_LIMIT)] = 100


@router.get(
    "/jobs/{job}/metrics",
    operation_id="list_metrics",
    summary="The series of a job, with their newest points",
    response_model=Page[MetricView],
)
def list_metrics(job: JobViewer, context: AppContextDep, query: Annotated[MetricQuery, Query()]) -> Response:
    """In order of attempt, role, index and name."""
    only = _only(query.name, query.prefix, query.attempt, query.role, query.index, system=query.system, kind=query.kind)
    return _json(service.list_metrics(context, job, only, limit=query.limit, cursor=query.cursor))


@router.get("/jobs/{job}/metrics/names", operation_id="list_metric_names", summary="The names of a job's series")
def list_metric_names(job: JobViewer, context: AppContextDep, query: Annotated[NameQuery, Query()]) -> Page[MetricName]:
    """Each name once per kind, in order of name: far fewer than the series of a gang with many replicas."""
    only = _only([], query.prefix, None, None, None, system=query.system, kind=query.kind)
    return service.list_names(context, job, only, limit=query.limit, cursor=query.cursor)


@router.get(
    "/jobs/{job}/metrics/suggestions",
    operation_id="suggest_metric_patterns",
    summary="Log lines of a job without metrics that look like metrics",
)
def suggest_metric_patterns(job: JobViewer, context: AppContextDep) -> MetricSuggestions:
    """At most three lines, each with the entry of `metric_patterns` that reads it. Empty if the job has metrics or
    still runs.
    """
    return service.suggest_patterns(context, job)


@router.get(
    "/jobs/{job}/metrics/chart",
    operation_id="chart_metrics",
    summary="A job's metrics in a window",
    response_model=MetricsChart,
)
def chart_metrics(
    job: JobViewer,
    context: AppContextDep,
    name: Names = [],  # noqa: B006 (never changed)
    prefix: PrefixQuery = "",
    attempt: AttemptQuery = None,
    role: RoleQuery = None,
    index: IndexQuery = None,
    by: ByQuery = "step",
    low: LowQuery = None,
    high: HighQuery = None,
    buckets: BucketQuery = 500,
) -> Response:
    """All points if there are few; else buckets of equal width, with the lowest and highest value of each."""
    only = _only(name, prefix, attempt, role, index, system=True, kind="scalar")
    return _json(service.chart(context, [job], ChartQuery(only, _window(by, low, high), buckets)))


@router.get(
    "/metrics/chart",
    operation_id="compare_metrics",
    summary="Metrics of several jobs in a window",
    response_model=MetricsChart,
)
def compare_metrics(
    caller: Reader,
    context: AppContextDep,
    job: Annotated[
        list[Annotated[str, Query(max_length=100)]],
        Query(description="Ids or names of jobs; may be repeated.", min_length=1, max_length=_JOB_COUNT_LIMIT),
    ],
    name: Names = [],  # noqa: B006 (never changed)
    prefix: PrefixQuery = "",
    role: RoleQuery = None,
    index: IndexQuery = None,
    by: ByQuery = "step",
    low: LowQuery = None,
    high: HighQuery = None,
    buckets: BucketQuery = 500,
) -> Response:
    """Like a job's chart, to compare several jobs."""
    only = _only(name, prefix, None, role, index, system=True, kind="scalar")
    accesses = [JobAccess(caller, ref, "viewer") for ref in dict.fromkeys(job)]
    return _json(service.chart(context, accesses, ChartQuery(only, _window(by, low, high), buckets)))


@router.get(
    "/jobs/{job}/metrics/stream",
    operation_id="stream_metrics",
    summary="A job's new points, as server-sent events",
    response_class=Response,
    responses=stream_document(
        "`points` (a MetricView with `points`, columns of the new points), `error` (a problem), `end` (the job has "
        "ended). Resume with the last `id` as Last-Event-ID; begin with a chart's `cursor`."
    ),
)
async def stream_metrics(
    request: Request,
    job: JobViewer,
    context: AppContextDep,
    name: Names = [],  # noqa: B006 (never changed)
    prefix: PrefixQuery = "",
    attempt: AttemptQuery = None,
    role: RoleQuery = None,
    index: IndexQuery = None,
    after: Annotated[str | None, Query(max_length=8000, description="A chart's `cursor`.")] = None,
    last_event_id: Annotated[str | None, Header(max_length=8000, description="Resume after this id.")] = None,
) -> Response:
    """Points after `after`; without it, points from now on. Of at most 200 series."""
    since = last_event_id if last_event_id is not None else after
    counts = None if since is None else read_stream_cursor(since)
    only = _only(name, prefix, attempt, role, index, system=True, kind="scalar")
    job_id, _ = await run_in_threadpool(_state, context, job)

    async def is_over() -> bool:
        # Revoked tokens and lost roles end the stream; both are cached for some seconds, so this is cheap.
        caller = await authenticate(request, context)
        return JobState((await run_in_threadpool(_state, context, replace(job, caller=caller)))[1]).is_terminal

    stream = MetricStreamer(
        context=context,
        job_id=job_id,
        only=only,
        check_is_over=is_over,
        run=run_in_threadpool,
        shutdown=shutdown_of(request),
        counts=counts,
    )
    return stream_response(stream.events(), request, job.caller.user_id)


@router.get(
    "/jobs/{job}/metrics/objects", operation_id="list_metric_objects", summary="A series' histograms, images or texts"
)
def list_metric_objects(
    job: JobViewer, context: AppContextDep, query: Annotated[ObjectQuery, Query()]
) -> Page[MetricObjectView]:
    """Oldest first, of the newest attempt that has any. About a hundred objects per series are stored, evenly
    thinned.
    """
    only = _only([query.name], "", query.attempt, query.role, query.index, system=True, kind=query.kind)
    return Page[MetricObjectView](**service.objects(context, job, only, limit=query.limit, cursor=query.cursor))


@router.get(
    "/jobs/{job}/metrics/images/{image}",
    operation_id="read_metric_image",
    summary="An image that a job reported",
    response_class=Response,
    responses={200: {"content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}}},
)
def read_metric_image(
    job: JobViewer, context: AppContextDep, image: Annotated[int, Path(ge=1, le=2**62, description="Its id.")]
) -> Response:
    """The file as it was sent."""
    media_type, data = service.image(context, job, image)
    # A job's bytes: browsers must display them as an image or not at all.
    headers = {
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "private, max-age=86400, immutable",
    }
    return Response(data, media_type=media_type, headers=headers)


@router.get("/jobs/{job}/resources", operation_id="summarise_resources", summary="Resource usage of each replica")
def summarise_resources(
    job: JobViewer,
    context: AppContextDep,
    attempt: AttemptQuery = None,
    window_s: Annotated[float, Query(ge=10, le=86_400, description="Seconds to average over.")] = 300,
) -> ResourceSummary:
    """Of the newest attempt unless `attempt` is given. `notes` reports idle GPUs and stragglers."""
    return resources.summarise(context, job, attempt=attempt, window_s=window_s)


def _only(
    names: list[str],
    prefix: str,
    attempt: int | None,
    role: str | None,
    index: int | None,
    *,
    system: bool,
    kind: str | None,
) -> SeriesFilter:
    return SeriesFilter(
        attempt=attempt,
        role=role,
        index=index,
        names=tuple(names),
        kind=kind,
        prefix=prefix,
        without_prefix="" if system else SYSTEM,
    )


def _window(by: By, low: float | None, high: float | None) -> ChartWindow:
    scale = 1 if by == "step" else 1000
    for name, end in (("from", low), ("to", high)):
        if end is not None and abs(end * scale) > STEP_LIMIT:
            raise InvalidRequest(f"{name} is out of range.", field=name)
    if low is not None and high is not None and low > high:
        raise InvalidRequest("from is larger than to.", field="from")
    return ChartWindow(by, None if low is None else round(low * scale), None if high is None else round(high * scale))


def _state(context: AppContextDep, access: JobAccess) -> tuple[str, str]:
    with context.read() as work:
        job = access.load(work.session)
        return job.id, job.state


def _json(answer: Plain) -> Response:
    # Up to 100,000 buckets: a pydantic model for each number would take longer than reading them.
    return Response(as_json(answer), media_type="application/json")
