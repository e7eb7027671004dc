from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Final

from fastapi import Query
from trainmaster.wire.forecasts import ExplanationView, ForecastRequest, ForecastView

from api.app.unit_of_work import AppContext, AppContextDep
from api.auth import Caller, JobAccess, JobViewer, Writer
from api.forecasts.service import ask_of, ask_of_job, check_waits, explain, forecast, in_cluster
from api.http.routing import new_router
from api.jobs.service import canonical, changed_spec, check_submission, read_spec
from core.db.repositories.questions import ForecastQuestion
from core.db.tables import Job
from core.domain.errors import InvalidRequest

router = new_router("forecasts")

_CLOCKS_DIFFER: Final = timedelta(minutes=1)  # the client's clock and the server's


@router.post(
    "/forecasts", operation_id="forecast_spec", summary="When and where a job would run if it were submitted now"
)
async def forecast_spec(body: ForecastRequest, caller: Writer, context: AppContextDep) -> ForecastView:
    """The planner's forecast: nodes for the replicas, or the reason to wait, the expected start, and changes with which
    the job would start now. Nothing is submitted; the spec is checked like a submission. With `job`, the forecast is
    for a queued job at its position in the queue, with `changes` to its spec; with `cluster`, for a hypothetical
    cluster. Needs the role `member` in the project.
    """
    question = await context.run_bounded(_checked, body, caller, context)
    is_unchanged = body.job is not None and not body.changes and body.cluster is None
    return await forecast(context, caller, question, is_unchanged=is_unchanged)


def _checked(body: ForecastRequest, caller: Caller, context: AppContext) -> ForecastQuestion:
    if body.job is not None:
        if body.spec is not None or body.spec_text is not None:
            raise InvalidRequest("State either `spec` or `job`, not both.", field="job")
        return in_cluster(_changed(body, body.job, caller, context), body.cluster)
    spec = read_spec(body)
    if body.changes:
        spec = canonical(changed_spec(spec.model_dump(mode="json", exclude_none=True), body.changes))
    return in_cluster(ask_of(context, caller, check_submission(context, caller, spec)), body.cluster)


def _changed(body: ForecastRequest, ref: str, caller: Caller, context: AppContext) -> ForecastQuestion:
    with context.read() as work:
        job = JobAccess(caller, ref, "viewer").load(work.session)
        check_waits(job)
        if not body.changes:
            return ask_of_job(work.session, job)
        work.session.expunge(job)
    spec = canonical(changed_spec(job.spec, body.changes))
    return ask_of(context, caller, check_submission(context, caller, spec), job)


@router.get(
    "/jobs/{job}/forecast",
    operation_id="forecast_job",
    summary="When a queued job starts, and what would start it sooner",
)
async def forecast_job(job: JobViewer, context: AppContextDep) -> ForecastView:
    """The reason to wait, the position in the queue, the expected start, and changes with which a clone of the job
    would start now or sooner.
    """
    return await forecast(context, job.caller, await context.run_bounded(_waiting, job, context), is_unchanged=True)


def _waiting(job: JobAccess, context: AppContext) -> ForecastQuestion:
    with context.read() as work:
        return ask_of_job(work.session, job.load(work.session))


@router.get("/jobs/{job}/explanation", operation_id="explain_job", summary="Why a job waits, or waited at a time")
async def explain_job(
    job: JobViewer,
    context: AppContextDep,
    at: Annotated[
        datetime | None, Query(description="Explain the last plan up to this time; unstated: the current one.")
    ] = None,
) -> ExplanationView:
    """Replays the planner on its recorded input of that time, and reports its decision for the job and the reason.
    Recent scheduling decisions are kept for a while.
    """
    if at is not None and at.tzinfo is None:
        raise InvalidRequest("at: needs a time zone, such as 2026-11-21T14:20:00Z.", field="at")
    return await explain(context, job.caller, await context.run_bounded(_any_job, job, context, at), at)


def _any_job(job: JobAccess, context: AppContext, at: datetime | None) -> Job:
    with context.read() as work:
        if at is not None and at > work.now + _CLOCKS_DIFFER:
            raise InvalidRequest(
                f"at: {at:%Y-%m-%d %H:%M:%S%z} is in the future; `whatif` tells when a job is expected to start.",
                field="at",
            )
        found = job.load(work.session)
        work.session.expunge(found)
        return found
