"""Questions to the planner, which runs in the control loop: it reads questions from the database and answers there.

Also the feasibility check at submission: whether any node could ever run the job, before the user waits in vain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import anyio
from anyio import from_thread, to_thread
from sqlalchemy.orm import Session
from trainmaster.wire.forecasts import (
    ClusterChange,
    CostForecast,
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
from core.db.leases import TICK_DONE, marked_at
from core.db.repositories import questions
from core.db.repositories.questions import ERROR, ForecastQuestion, QuestionKind
from core.db.tables import Job, Project, StartForecastRow, User
from core.domain.errors import Conflict, InvalidRequest, NotFound, TrainmasterError, Unavailable
from core.domain.jobs.states import JobState
from core.domain.sharing.costs import amount_of
from core.domain.sharing.resources import gang_of
from core.domain.sharing.wait_phrases import in_full
from core.ids import new_id
from core.wakeups import TOPIC_FORECAST

_CENT: Final = Decimal("0.01")
_FIRST_POLL_S: Final = 0.02
_MAX_POLL_S: Final = 0.25
_NOTIFY_AGAIN_S: Final = 1.0
_FEASIBILITY_TIMEOUT_S: Final = 3.0
# A scheduler that planned nothing for so long counts as away; the check is skipped.
_SCHEDULER_AWAY_AFTER: Final = timedelta(seconds=30)


def ask_of(context: AppContext, caller: Caller, submission: Submission, job: Job | None = None) -> ForecastQuestion:
    """The question about a job that is not submitted, or about the queued ``job`` with another spec."""
    spec = submission.spec
    gang = gang_of(spec).to_json()
    question = ForecastQuestion(
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
        return question
    return replace(question, job_id=job.id, name=job.name, queued_at=job.queued_at)


def ask_of_job(session: Session, job: Job) -> ForecastQuestion:
    """The question about a queued job.

    Raises:
        Conflict: the job is not queued.
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
        raise Conflict(f"Job {job.name} is not queued: it is {job.state}.")


def in_cluster(ask: ForecastQuestion, cluster: ClusterChange | None) -> ForecastQuestion:
    """``ask`` for a hypothetical cluster.

    Raises:
        InvalidRequest: nodes are added, but ``like`` is missing.
    """
    if cluster is None:
        return ask
    if cluster.more_nodes and cluster.like is None:
        raise InvalidRequest("Name a node in `like`: the added nodes get its resources.", field="cluster.like")
    return replace(ask, more_nodes=cluster.more_nodes, like=cluster.like, without=tuple(cluster.without))


async def forecast(
    context: AppContext, caller: Caller, ask: ForecastQuestion, *, is_unchanged: bool = False
) -> ForecastView:
    """The planner's forecast, usually within a tenth of a second.

    Args:
        is_unchanged: the question is about a queued job as it is. Its expected start is then the last one that was
        computed for the whole queue, so that the job and the queue show the same.

    Raises:
        Unavailable: no scheduler answers in time, or there are too many questions.
    """
    result = await answer(context, caller, QuestionKind.FORECAST, ask.to_json())
    found = forecast_view(result).model_copy(update={"cost": cost_view(result.get("cost"), context.settings.currency)})
    if is_unchanged and found.wait_reason is not None:
        stored = await to_thread.run_sync(_stored_start, context, ask.job_id)
        return found if stored is None else found.model_copy(update={"start": stored})
    return found


def _stored_start(context: AppContext, job_id: str) -> ExpectedStartView | None:
    with context.read() as work:
        row = work.session.get(StartForecastRow, job_id)
        return None if row is None else start_view(row.code, row.sentence, row)


def start_view(code: str, sentence: str, row: Any, *, is_known: bool = True) -> ExpectedStartView:
    """The start forecast as stored in ``row``. Its sentence and nodes may name other jobs, so for jobs that the caller
    may not see there are only the times.
    """
    stored = {"code": code, "early_at": row.earliest, "likely_at": row.likely, "late_at": row.latest}
    named = {"sentence": starts(sentence), "nodes": row.nodes or []} if is_known else {"sentence": ""}
    return ExpectedStartView.model_validate({**stored, **named})


async def explain(context: AppContext, caller: Caller, job: Job, at: datetime | None) -> ExplanationView:
    """Why the job waited at that time, or waits now.

    Raises:
        NotFound: no decision of that time is recorded.
        Unavailable: no scheduler answers in time, or there are too many questions.
    """
    question = {"job_id": job.id, "name": job.name, "at": None if at is None else at.isoformat()}
    result = await answer(context, caller, QuestionKind.EXPLANATION, question)
    return ExplanationView(
        job_id=job.id,
        at=result["at"],
        verdict=result["verdict"],
        sentence=in_full(result["sentence"]),
        wait_reason=_reason(result["reason"]),
        queue_position=result["position"],
        places=[PlaceView(**place) for place in result["places"]],
        waiting=result["waiting"],
        running=result["running"],
        nodes=result["nodes"],
        is_same=not result.get("then"),
        then=in_full(result["then"]) if result.get("then") else "",
        order=in_full(result["order"]) if result.get("order") else "",
    )


async def answer(
    context: AppContext, caller: Caller, kind: QuestionKind, question: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Put a question to the scheduler and wait for its answer.

    Raises:
        Unavailable: no scheduler answers in time, or there are too many questions.
        TrainmasterError: the question cannot be answered.
    """
    question_id = new_id("question")
    await to_thread.run_sync(put, context, question_id, caller.user_id, kind, question)
    try:
        with anyio.move_on_after(kind.patience.total_seconds()):
            return unless_error(await _wait(context, question_id))
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(_drop, context, question_id)
    raise Unavailable(
        "The scheduler does not answer now; `trainmaster version --server` shows its state.", retry_after_s=5.0
    )


def unless_error(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """``result``. Raises the error that it reports instead of an answer."""
    error = result.get(ERROR)
    if error is None:
        return result
    sentence, field = in_full(error["sentence"]), error.get("field")
    match error["code"]:
        case "invalid_request":
            raise InvalidRequest(sentence, field=field)
        case "not_found":
            raise NotFound(sentence)
    raise TrainmasterError(sentence)


async def _wait(context: AppContext, question_id: str) -> Mapping[str, Any]:
    pause_s, waited_s = _FIRST_POLL_S, 0.0
    while True:
        await anyio.sleep(pause_s)
        found = await to_thread.run_sync(_poll, context, question_id)
        if found is not None:
            return found
        waited_s += pause_s
        if waited_s >= _NOTIFY_AGAIN_S:  # the wake-up may have been lost
            context.wakeup.notify(TOPIC_FORECAST)
            waited_s = 0.0
        pause_s = min(2 * pause_s, _MAX_POLL_S)


def put(context: AppContext, question_id: str, user_id: str, kind: QuestionKind, question: Mapping[str, Any]) -> None:
    with context.write() as work:
        questions.put(work.session, question_id, user_id, question, work.now, kind)
        work.notify(TOPIC_FORECAST)


def _poll(context: AppContext, question_id: str) -> Mapping[str, Any] | None:
    with context.read() as work:
        try:
            return questions.answer_to(work.session, question_id)
        except LookupError:  # dropped as too old by a process whose clock is ahead
            return None


def _drop(context: AppContext, question_id: str) -> None:
    with context.write() as work:
        questions.drop(work.session, question_id)


def forecast_view(result: Mapping[str, Any]) -> ForecastView:
    return ForecastView(
        places=[PlaceView(**place) for place in result["places"]],
        wait_reason=_reason(result["reason"]),
        queue_position=result["position"],
        start=_start(result["start"]),
        options=[_option(option) for option in result["options"]],
        later=[_option(option) for option in result["later"]],
        victims=[VictimView(**{**victim, "sentence": in_full(victim["sentence"])}) for victim in result["victims"]],
    )


def cost_view(cost: Mapping[str, Any] | None, currency: str) -> CostForecast | None:
    """The planner's figures as money, in one sentence."""
    if cost is None:
        return None
    micros, run_s, limit_s = cost["micros_per_hour"], cost["run_s"], cost["limit_s"]

    def during(seconds: float | None) -> Decimal | None:
        return None if seconds is None else amount_of(round(micros * seconds / 3600)).quantize(_CENT)

    expected, at_most = during(run_s), during(limit_s)
    per_hour = f"{amount_of(micros):.2f} {currency} per hour{'' if cost['is_exact'] else ' at most'}"
    ceiling = "" if at_most is None else f"at most {at_most} {currency} by its max_run_time of {_time(limit_s)}"
    if expected is not None:
        sentence = f"About {expected} {currency}: {per_hour} for {_time(run_s)}, as learnt from {cost['source']}"
        sentence += f"; {ceiling}" if ceiling else ""
    elif ceiling:
        sentence = f"{ceiling[0].upper()}{ceiling[1:]}, at {per_hour}; its run time is not known yet"
    else:
        sentence = f"{per_hour}; its run time is not known yet, and a max_run_time would limit its cost"
    return CostForecast(
        sentence=f"{sentence}.",
        currency=currency,
        per_hour=amount_of(micros),
        basis="unknown" if expected is None and at_most is None else "limit" if expected is None else "learnt",
        expected=expected,
        at_most=at_most,
        run_s=run_s,
    )


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _reason(reason: Mapping[str, Any] | None) -> WaitReasonView | None:
    return None if reason is None else WaitReasonView(**{**reason, "sentence": in_full(reason["sentence"])})


def _option(option: Mapping[str, Any]) -> OptionView:
    return OptionView(**{**option, "start": _start(option["start"])})


def _start(start: Mapping[str, Any] | None) -> ExpectedStartView | None:
    return None if start is None else ExpectedStartView(**{**start, "sentence": starts(start["sentence"])})


def starts(sentence: str) -> str:
    """The planner's phrase about a start as a full sentence."""
    return in_full(f"it starts {sentence}")


def why_never(context: AppContext, caller: Caller, submission: Submission) -> WaitReasonView | None:
    """The planner's reason why no existing node could ever run the job; ``None``: a node could, or it is unknown.

    Skipped for a job with a ``max_wait``, and while no scheduler answers. Call it in a thread of the server, without an
    open transaction.
    """
    if submission.spec.max_wait is not None:
        return None
    if not any(role.resources.model_dump(exclude_defaults=True) for role in submission.spec.roles.values()) and not (
        submission.spec.node_selector
    ):
        return None  # it fits on any node
    with context.read() as work:
        planned = marked_at(work.session, TICK_DONE)
        if planned is None or work.now - planned > _SCHEDULER_AWAY_AFTER:
            return None
    reason = from_thread.run(_wait_reason_in_time, context, caller, ask_of(context, caller, submission))
    return reason if reason is not None and reason.is_infeasible else None


async def _wait_reason_in_time(context: AppContext, caller: Caller, ask: ForecastQuestion) -> WaitReasonView | None:
    with anyio.move_on_after(_FEASIBILITY_TIMEOUT_S):
        try:
            return (await forecast(context, caller, ask)).wait_reason
        except TrainmasterError:  # no answer: the job is accepted and waits
            return None
    return None
