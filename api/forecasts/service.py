"""Asking the planner. It lives in the control loop, which finds the question in the database and writes its answer there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import anyio
from anyio import to_thread
from sqlalchemy.orm import Session
from trainmaster.wire.forecasts import (
    ClusterChange,
    ExpectedStartView,
    ExplanationView,
    ForecastView,
    OptionView,
    PlaceView,
    VictimView,
)
from trainmaster.wire.jobs import WaitReasonView

from api.app.unit_of_work import AppContext
from api.auth import Caller
from api.jobs.service import Submission
from core.db.repositories import questions
from core.db.repositories.questions import ERROR, ForecastQuestion, QuestionKind
from core.db.tables import Job, Project, User
from core.domain.errors import Conflict, InvalidRequest, NotFound, TrainmasterError, Unavailable
from core.domain.jobs.states import JobState
from core.domain.sharing.resources import gang_of
from core.domain.sharing.wait_phrases import in_full
from core.ids import new_id
from core.wakeups import TOPIC_FORECAST

_FIRST_LOOK_S: Final = 0.02
_LAST_LOOK_S: Final = 0.25
_RING_AGAIN_S: Final = 1.0


def ask_of(context: AppContext, caller: Caller, submission: Submission, job: Job | None = None) -> ForecastQuestion:
    """The question about a job that is not submitted, or about ``job``, which waits, with another spec."""
    spec = submission.spec
    gang = gang_of(spec).to_json()
    asked = ForecastQuestion(
        "",
        spec.name,
        spec.project,
        caller.user,
        spec.priority,
        context.clock(),
        gang,
        spec.max_run_time,
        spec.code or "",
    )
    if job is None:
        return asked
    return replace(asked, job_id=job.id, name=job.name, queued_at=job.queued_at)


def ask_of_job(session: Session, job: Job) -> ForecastQuestion:
    """The question about a job that waits.

    Raises:
        Conflict: it does not.
    """
    check_waits(job)
    project = session.get_one(Project, job.project_id).name
    user = session.get_one(User, job.user_id).name
    code = job.spec.get("code") or ""
    return ForecastQuestion(
        job.id, job.name, project, user, job.priority, job.queued_at, job.gang, job.max_run_time_s, code
    )


def check_waits(job: Job) -> None:
    if job.state != JobState.QUEUED:
        raise Conflict(f"Job {job.name} does not wait for a place: it is {job.state}.")


def in_cluster(ask: ForecastQuestion, cluster: ClusterChange | None) -> ForecastQuestion:
    """``ask`` in another cluster.

    Raises:
        InvalidRequest: more nodes of no kind.
    """
    if cluster is None:
        return ask
    if cluster.more_nodes and cluster.like is None:
        raise InvalidRequest("Name a node in `like` whose kind there shall be more of.", field="cluster.like")
    return replace(ask, more_nodes=cluster.more_nodes, like=cluster.like, without=tuple(cluster.without))


async def forecast(context: AppContext, caller: Caller, ask: ForecastQuestion) -> ForecastView:
    """The planner's own answer, mostly within a tenth of a second.

    Raises:
        Unavailable: no scheduler answers in time, or too much is asked.
    """
    return forecast_view(await answer(context, caller, QuestionKind.FORECAST, ask.to_json()))


async def explain(context: AppContext, caller: Caller, job: Job, at: datetime | None) -> ExplanationView:
    """Why the job waited at that time, or waits now.

    Raises:
        NotFound: nothing of that time is kept.
        Unavailable: no scheduler answers in time, or too much is asked.
    """
    asked = {"job_id": job.id, "name": job.name, "at": None if at is None else at.isoformat()}
    told = await answer(context, caller, QuestionKind.EXPLANATION, asked)
    return ExplanationView(
        job_id=job.id,
        at=told["at"],
        verdict=told["verdict"],
        sentence=in_full(told["sentence"]),
        wait_reason=_reason(told["reason"]),
        queue_position=told["position"],
        places=[PlaceView(**place) for place in told["places"]],
        waiting=told["waiting"],
        running=told["running"],
        nodes=told["nodes"],
        is_same=not told.get("then"),
        then=in_full(told["then"]) if told.get("then") else "",
        order=in_full(told["order"]) if told.get("order") else "",
    )


async def answer(
    context: AppContext, caller: Caller, kind: QuestionKind, asked: Mapping[str, Any]
) -> Mapping[str, Any]:
    """What the scheduler says; who asks waits for it.

    Raises:
        Unavailable: no scheduler answers in time, or too much is asked.
        TrainmasterError: it cannot be answered.
    """
    question_id = new_id("question")
    await to_thread.run_sync(put, context, question_id, caller.user_id, kind, asked)
    try:
        with anyio.move_on_after(kind.patience.total_seconds()):
            return unless_error(await _wait(context, question_id))
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(_drop, context, question_id)
    raise Unavailable(
        "The scheduler does not answer now; `trainmaster version --server` tells how it is.", retry_after_s=5.0
    )


def unless_error(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """``told``, unless it says that there is no answer."""
    error = told.get(ERROR)
    if error is None:
        return told
    sentence, field = in_full(error["sentence"]), error.get("field")
    match error["code"]:
        case "invalid_request":
            raise InvalidRequest(sentence, field=field)
        case "not_found":
            raise NotFound(sentence)
    raise TrainmasterError(sentence)


async def _wait(context: AppContext, question_id: str) -> Mapping[str, Any]:
    pause_s, waited_s = _FIRST_LOOK_S, 0.0
    while True:
        await anyio.sleep(pause_s)
        found = await to_thread.run_sync(_look, context, question_id)
        if found is not None:
            return found
        waited_s += pause_s
        if waited_s >= _RING_AGAIN_S:  # the ring may have been lost
            context.wakeup.notify(TOPIC_FORECAST)
            waited_s = 0.0
        pause_s = min(2 * pause_s, _LAST_LOOK_S)


def put(context: AppContext, question_id: str, user_id: str, kind: QuestionKind, asked: Mapping[str, Any]) -> None:
    with context.write() as work:
        questions.put(work.session, question_id, user_id, asked, work.now, kind)
        work.notify(TOPIC_FORECAST)


def _look(context: AppContext, question_id: str) -> Mapping[str, Any] | None:
    with context.read() as work:
        try:
            return questions.answer_to(work.session, question_id)
        except LookupError:  # dropped as too old, by a clock that is far ahead of ours
            return None


def _drop(context: AppContext, question_id: str) -> None:
    with context.write() as work:
        questions.drop(work.session, question_id)


def forecast_view(told: Mapping[str, Any]) -> ForecastView:
    return ForecastView(
        places=[PlaceView(**place) for place in told["places"]],
        wait_reason=_reason(told["reason"]),
        queue_position=told["position"],
        start=_start(told["start"]),
        options=[_option(option) for option in told["options"]],
        later=[_option(option) for option in told["later"]],
        victims=[VictimView(**{**one, "sentence": in_full(one["sentence"])}) for one in told["victims"]],
    )


def _reason(told: Mapping[str, Any] | None) -> WaitReasonView | None:
    return None if told is None else WaitReasonView(**{**told, "sentence": in_full(told["sentence"])})


def _option(told: Mapping[str, Any]) -> OptionView:
    return OptionView(**{**told, "start": _start(told["start"])})


def _start(told: Mapping[str, Any] | None) -> ExpectedStartView | None:
    return None if told is None else ExpectedStartView(**{**told, "sentence": starts(told["sentence"])})


def starts(sentence: str) -> str:
    """The planner's words about a start as the sentence that a person reads alone."""
    return in_full(f"it starts {sentence}")
