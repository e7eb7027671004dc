"""Asking the planner. It lives in the control loop, which finds the question in the database and writes its answer there."""

from __future__ import annotations

from typing import Final

import anyio
from anyio import to_thread
from sqlalchemy.orm import Session
from trainmaster.wire.forecasts import ForecastView, OptionView, PlaceView
from trainmaster.wire.jobs import WaitReasonView

from api.auth import Caller
from api.jobs.service import Submission
from api.work import Platform
from core.bell import TOPIC_FORECAST
from core.db.repositories import questions
from core.db.repositories.questions import Ask
from core.db.tables import Job, Project, User
from core.domain.errors import Conflict, Unavailable
from core.domain.resources import gang_of
from core.domain.states import JobState
from core.domain.waiting import in_full
from core.ids import new_id

_FIRST_LOOK_S: Final = 0.02
_LAST_LOOK_S: Final = 0.25
_RING_AGAIN_S: Final = 1.0


def ask_of(platform: Platform, caller: Caller, submission: Submission) -> Ask:
    """The question about a job that is not submitted."""
    spec = submission.spec
    gang = gang_of(spec).to_json()
    now = platform.clock()
    return Ask("", spec.name, spec.project, caller.user, spec.priority, now, gang, spec.max_run_time)


def ask_of_job(session: Session, job: Job) -> Ask:
    """The question about a job that waits.

    Raises:
        Conflict: it does not.
    """
    if job.state != JobState.QUEUED:
        raise Conflict(f"Job {job.name} does not wait for a place: it is {job.state}.")
    project = session.get_one(Project, job.project_id).name
    user = session.get_one(User, job.user_id).name
    return Ask(job.id, job.name, project, user, job.priority, job.queued_at, job.gang, job.max_run_time_s)


async def answer(platform: Platform, caller: Caller, ask: Ask) -> ForecastView:
    """The planner's answer, mostly within a tenth of a second.

    Raises:
        Unavailable: no scheduler answers in time, or too much is asked.
    """
    question_id = new_id("question")
    await to_thread.run_sync(_put, platform, question_id, caller.user_id, ask)
    try:
        with anyio.move_on_after(questions.PATIENCE.total_seconds()):
            return await _wait(platform, question_id)
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(_drop, platform, question_id)
    raise Unavailable(
        "The scheduler does not answer now; `trainmaster version --server` tells how it is.", retry_after_s=5.0
    )


async def _wait(platform: Platform, question_id: str) -> ForecastView:
    pause_s, waited_s = _FIRST_LOOK_S, 0.0
    while True:
        await anyio.sleep(pause_s)
        found = await to_thread.run_sync(_look, platform, question_id)
        if found is not None:
            return found
        waited_s += pause_s
        if waited_s >= _RING_AGAIN_S:  # the ring may have been lost
            platform.bell.ring(TOPIC_FORECAST)
            waited_s = 0.0
        pause_s = min(2 * pause_s, _LAST_LOOK_S)


def _put(platform: Platform, question_id: str, user_id: str, ask: Ask) -> None:
    with platform.write() as work:
        questions.put(work.session, question_id, user_id, ask, work.now)
        work.ring(TOPIC_FORECAST)


def _look(platform: Platform, question_id: str) -> ForecastView | None:
    with platform.read() as work:
        told = questions.answer_to(work.session, question_id)
    if told is None:
        return None
    reason = told["reason"]
    return ForecastView(
        places=[PlaceView(**place) for place in told["places"]],
        wait_reason=None if reason is None else WaitReasonView(**{**reason, "sentence": in_full(reason["sentence"])}),
        queue_position=told["position"],
        options=[OptionView(**option) for option in told["options"]],
    )


def _drop(platform: Platform, question_id: str) -> None:
    with platform.write() as work:
        questions.drop(work.session, question_id)
