from __future__ import annotations

from trainmaster.wire.forecasts import ForecastRequest, ForecastView

from api.auth import Caller, JobAccess, JobViewer, Writer
from api.forecasts.service import answer, ask_of, ask_of_job
from api.jobs.service import check_submission, read_spec
from api.routing import new_router
from api.work import Platform, PlatformDep
from core.db.repositories.questions import Ask

router = new_router("forecasts")


@router.post("/forecasts", operation_id="forecast_spec", summary="Where a job would run if it were submitted now")
async def forecast_spec(body: ForecastRequest, caller: Writer, platform: PlatformDep) -> ForecastView:
    """The planner's own answer: nodes for its replicas, or why it would wait and what would start instead. Nothing is
    submitted; the spec is checked as a submission is. Needs the role `member` in the project.
    """
    return await answer(platform, caller, await platform.run_hot(_checked, body, caller, platform))


def _checked(body: ForecastRequest, caller: Caller, platform: Platform) -> Ask:
    return ask_of(platform, caller, check_submission(platform, caller, read_spec(body)))


@router.get("/jobs/{job}/forecast", operation_id="forecast_job", summary="What would let a waiting job start now")
async def forecast_job(job: JobViewer, platform: PlatformDep) -> ForecastView:
    """Why it waits, its place in the queue, and changes with which a clone of it would start at once."""
    return await answer(platform, job.caller, await platform.run_hot(_waiting, job, platform))


def _waiting(job: JobAccess, platform: Platform) -> Ask:
    with platform.read() as work:
        return ask_of_job(work.session, job.load(work.session))
