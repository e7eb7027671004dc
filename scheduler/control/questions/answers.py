"""Answers to users' questions about the planner and about studies.

Questions to the planner are answered from a snapshot of its own or from the plan log: why a job waited at a moment is
answered by the same planner, run again on its input of that time. A question about a study asks which of its
parameters matter, or what more trials would bring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeAlias

import structlog
from sqlalchemy.orm import Session
from trainmaster.studies import Space, StudySpec

from core.db.engine import unit_of_work
from core.db.repositories import questions, studies
from core.db.repositories.allocations import read_prices
from core.db.repositories.questions import ERROR, ForecastQuestion, OpenQuestion, QuestionKind
from core.db.tables import Study
from core.domain.ids import JobId, NodeId
from core.domain.sharing.costs import PriceList
from core.domain.sharing.resources import Gang
from core.domain.sharing.wait_phrases import addressed_to
from core.domain.studies.results import values_of
from core.domain.studies.states import TrialState
from scheduler.control.context import ControlContext
from scheduler.control.planning.plan_log import PlanLogEntry, entry_at, first_entry_at
from scheduler.control.planning.poison_jobs import PoisonJobFilter
from scheduler.control.planning.snapshot import (
    PlannerInputs,
    SnapshotCache,
    load_snapshot,
    reason_to_json,
    with_budget_priority,
)
from scheduler.control.planning.start_forecasts import ForecastHistory
from scheduler.control.questions.job_cost import cost_to_json
from scheduler.planning import phrases
from scheduler.planning.explain.queue_position import explain_position
from scheduler.planning.forecast.calibration import Calibration
from scheduler.planning.forecast.durations import JobTraits
from scheduler.planning.forecast.start_times import StartForecast
from scheduler.planning.forecast.what_if import Alternative, Forecast, changed_cluster, forecast
from scheduler.planning.model import Placement, Plan, QueuedGang, Snapshot
from scheduler.planning.planner import plan
from scheduler.tuning import ObservedTrial
from scheduler.tuning.prediction import predict

log = structlog.get_logger(__name__)

# Each answer plans the whole queue; after so many the answers are written.
_AT_ONCE: Final = 4
# No job has this id: a job that is not submitted sorts after all others of its moment.
_NOT_SUBMITTED: Final = JobId("~")
_FAILED: Final = (
    "The planner could not answer this, which is a bug; the scheduler's log says where (question.failed). Asking the "
    "same again will not help."
)
_NOT_LOGGED: Final = "No plan of that time is kept; {}. Without a time, the present is explained."


# A forecast with its calibrated interval, on the grid of times.
_Shown: TypeAlias = Callable[[StartForecast], StartForecast]


class QuestionAnswerer:
    """Answers questions; one per process. Two processes may answer the same question equally well."""

    def __init__(self, control: ControlContext) -> None:
        self._control = control
        self._cache = SnapshotCache()
        self._poison_filter = PoisonJobFilter()

    def answer(self) -> None:
        """Answer all open questions. Harmless to repeat; without a question it costs one query.

        Raises:
            Unavailable: the database is away.
        """
        control = self._control
        while True:
            with unit_of_work(control.sessions, read_only=True, is_snapshot=True) as session:
                now = control.clock()
                open_questions = questions.unanswered(session, now, _AT_ONCE)
                if not open_questions:
                    return
                of_studies = {
                    question.id: _load_study_question(session, question.arguments)
                    for question in open_questions
                    if question.kind is QuestionKind.STUDY
                }
                of_planner = [question for question in open_questions if question.kind is not QuestionKind.STUDY]
                loaded, records, calibration, prices = None, {}, Calibration(), PriceList((), {})
                if of_planner:
                    can_grow = control.can_change_worlds
                    loaded = load_snapshot(session, self._cache, now, can_grow=can_grow)
                    records = {question.id: _record_of(session, question) for question in of_planner}
                    if any(question.kind is QuestionKind.FORECAST for question in of_planner):
                        calibration, prices = ForecastHistory.read(session).calibration(now), read_prices(session)
            answers = {name: self._answer_of_study(name, read) for name, read in of_studies.items()}
            if loaded is not None:
                answers |= {
                    question.id: self._answer(question, loaded, records[question.id], calibration, prices)
                    for question in of_planner
                }
            with unit_of_work(control.sessions) as session:
                questions.answer(session, answers, control.clock())

    def _answer(
        self,
        question: OpenQuestion,
        loaded: PlannerInputs,
        record: PlanLogEntry | datetime | None,
        calibration: Calibration,
        prices: PriceList,
    ) -> dict[str, Any]:
        """A question that makes the planner fail is answered all the same: it would fail again."""
        try:
            match question.kind:
                case QuestionKind.FORECAST:
                    return self._forecast(loaded, ForecastQuestion.from_json(question.arguments), calibration, prices)
                case QuestionKind.EXPLANATION:
                    return self._explain(question.arguments, loaded, record)
                case QuestionKind.SIMULATION | QuestionKind.STUDY:  # not answered here
                    return _error("internal", _FAILED)
        except Exception:
            log.exception("question.failed", question=question.id, kind=question.kind.value)
            return _error("internal", _FAILED)

    def _answer_of_study(self, question_id: str, read: _StudyQuestion | None) -> dict[str, Any]:
        if read is None:
            return _error("not_found", "There is no such study any more.")
        try:
            return _answer_study_question(read)
        except Exception:
            log.exception("question.failed", question=question_id, kind=QuestionKind.STUDY.value)
            return _error("internal", _FAILED)

    def _explain(
        self, ask: Mapping[str, Any], loaded: PlannerInputs, record: PlanLogEntry | datetime | None
    ) -> dict[str, Any]:
        job_id, name = JobId(ask["job_id"]), ask["name"]
        if ask.get("at") is None:
            planned = self._poison_filter.plan(loaded.snapshot, loaded.generations, plan)
            return explanation(loaded.snapshot.now, planned.snapshot, planned.plan, job_id, name)
        if not isinstance(record, PlanLogEntry):
            oldest = "there is none at all" if record is None else f"the oldest is of {record:%Y-%m-%d %H:%M:%S} UTC"
            return _error("not_found", _NOT_LOGGED.format(oldest))
        planned = PoisonJobFilter().plan(record.snapshot, {}, plan)
        planned_jobs = {job.job_id for job in record.snapshot.queued}
        poison = {job_id: reason for job_id, reason in record.plan.waits.items() if job_id not in planned_jobs}
        made = replace(planned.plan, waits={**planned.plan.waits, **poison})
        return explanation(record.at, planned.snapshot, made, job_id, name, logged_plan=record.plan)

    def _forecast(
        self, loaded: PlannerInputs, ask: ForecastQuestion, calibration: Calibration, prices: PriceList
    ) -> dict[str, Any]:
        """Poison jobs are found only when the planner fails: a plan for that in advance would cost as much as an
        answer.
        """
        (gang,) = with_budget_priority([self._gang_of(ask, loaded.snapshot)], loaded.snapshot.accounts)
        try:
            snapshot = self._poison_filter.without_known(loaded.snapshot, loaded.generations)
            return _forecast_in(snapshot, gang, ask, calibration, prices)
        except Exception:
            log.warning("forecast.retried", exc_info=True)
            planned = self._poison_filter.plan(loaded.snapshot, loaded.generations, plan)
            return _forecast_in(planned.snapshot, gang, ask, calibration, prices)

    def _gang_of(self, ask: ForecastQuestion, snapshot: Snapshot) -> QueuedGang:
        """A waiting job keeps its history and its waiting time; only its request may differ."""
        gang = Gang.from_json(ask.gang)
        traits = JobTraits(ask.project, ask.user, ask.name, ask.code, gang.shape())
        estimate = self._cache.estimates.of_waiting(traits, 0.0, ask.max_run_time_s)
        waits = next((job for job in snapshot.queued if job.job_id == ask.job_id), None)
        if waits is not None:
            return replace(
                waits, gang=gang, shape=gang.shape(), priority=ask.priority, max_run_time_s=ask.max_run_time_s
            )
        return QueuedGang(
            JobId(ask.job_id) if ask.job_id else _NOT_SUBMITTED,
            ask.name, ask.project, ask.user, ask.priority, ask.queued_at, gang, gang.shape(), ask.max_run_time_s,
            estimate=estimate,
        )  # fmt: skip


def _record_of(session: Session, question: OpenQuestion) -> PlanLogEntry | datetime | None:
    """The entry of the question time; a time: there is none so old, the oldest is of then; ``None``: there is none at
    all.
    """
    at = question.arguments.get("at") if question.kind is QuestionKind.EXPLANATION else None
    if at is None:
        return None
    try:
        return entry_at(session, datetime.fromisoformat(at)) or first_entry_at(session)
    except Exception:
        log.exception("record.unreadable", at=at)
        return None


def _forecast_in(
    snapshot: Snapshot, gang: QueuedGang, ask: ForecastQuestion, calibration: Calibration, prices: PriceList
) -> dict[str, Any]:
    try:
        changed_snapshot = changed_cluster(
            snapshot,
            more_nodes=ask.more_nodes,
            like=None if ask.like is None else NodeId(ask.like),
            without=[NodeId(name) for name in ask.without],
        )
    except ValueError as error:
        field, _, _ = str(error).partition(":")
        return _error("invalid_request", str(error), f"cluster.{field}")
    found = forecast(changed_snapshot, gang, left_out=[NodeId(name) for name in ask.without])
    result = _forecast_to_json(found, lambda start: calibration.apply(start, snapshot.now).on_grid(snapshot.now))
    return {**result, "cost": cost_to_json(prices, changed_snapshot, gang, found.placements)}


def _error(code: str, sentence: str, field: str | None = None) -> dict[str, Any]:
    return {ERROR: {"code": code, "sentence": sentence, "field": field}}


def _forecast_to_json(found: Forecast, shown: _Shown) -> dict[str, Any]:
    return {
        "places": _places_to_json(found.placements),
        "reason": None if found.reason is None else reason_to_json(found.reason),
        "position": found.position,
        "start": None if found.start is None else _start_to_json(shown(found.start)),
        "options": [_option_to_json(option, shown) for option in found.options],
        "later": [_option_to_json(option, shown) for option in found.later],
        "victims": [
            {"job_id": victim.job_id, "code": victim.code.value, "sentence": victim.sentence}
            for victim in found.victims
        ],
    }


def _start_to_json(start: StartForecast) -> dict[str, Any]:
    return {
        "code": start.code.value,
        "sentence": start.sentence,
        "early_at": _moment(start.earliest),
        "likely_at": _moment(start.likely),
        "late_at": _moment(start.latest),
        "nodes": list(start.nodes),
    }


def _moment(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _option_to_json(option: Alternative, shown: _Shown) -> dict[str, Any]:
    return {
        "code": option.code.value,
        "sentence": option.sentence,
        "roles": list(option.roles),
        "field": option.field,
        "value": option.value,
        "start": None if option.start is None else _start_to_json(shown(option.start)),
    }


@dataclass(frozen=True, slots=True)
class _StudyQuestion:
    """A question about a study, and what was read for it. ``results``: of its own trials, by number."""

    ask: Mapping[str, Any]
    spec: StudySpec
    seed: int
    results: Sequence[ObservedTrial]


def _load_study_question(session: Session, ask: Mapping[str, Any]) -> _StudyQuestion | None:
    """``None``: the study does not exist any more."""
    row = session.get(Study, ask["study_id"])
    if row is None or row.deleted_at is not None:
        return None
    spec = StudySpec.model_validate(row.spec)
    names = [metric.name for metric in spec.metrics]
    ended = (row for row in studies.ended_trials(session, row.id) if TrialState(row.state).has_result)
    read = ((trial.parameters, values_of(trial.result, names)) for trial in ended)
    return _StudyQuestion(
        ask, spec, row.seed, [ObservedTrial(point, values) for point, values in read if values is not None]
    )


def _answer_study_question(read: _StudyQuestion) -> dict[str, Any]:
    """The answer, as JSON; ``ask`` has ``what``: ``importance`` (and ``metric``, or null) or ``prediction`` (and
    ``more``).
    """
    goals = read.spec.goals
    if read.ask["what"] == "prediction":
        sign = read.spec.metrics[0].sign
        found = predict([sign * result.values[0] for result in read.results], read.ask["more"], read.seed)
        points = [
            {"more": point.more, "likely": sign * point.likely, "low": min(ends), "high": max(ends)}
            for point in found.points
            for ends in [(sign * point.low, sign * point.high)]
        ]
        return {**asdict(found), "points": points}
    from scheduler.tuning.engine import importance  # imports Optuna, only when it is needed

    metrics = [metric.name for metric in read.spec.metrics]
    metric = read.ask.get("metric")
    place = None if metric is None else metrics.index(metric)
    return asdict(importance(Space.of(read.spec), goals, read.results, place))


def explanation(
    at: datetime, snapshot: Snapshot, made: Plan, job_id: JobId, name: str, *, logged_plan: Plan | None = None
) -> dict[str, Any]:
    """What ``made``, the plan of ``snapshot``, says of the job, as JSON.

    ``verdict``: ``waits``, ``starts``, ``stops`` (it is preempted), ``runs`` or ``absent``. ``then``: what
    ``logged_plan`` says of the job, where that differs. ``order``: of a waiting job, the explanation of its queue
    position.
    """
    verdict, sentence, placements = _verdict(job_id, made, snapshot)
    reason = made.waits.get(job_id)
    if reason is not None:
        reason = replace(reason, sentence=addressed_to(job_id, name, reason.sentence, reason.numbers))
        sentence = reason.sentence
    return {
        "at": at.isoformat(),
        "verdict": verdict,
        "sentence": sentence,
        "reason": None if reason is None else reason_to_json(reason),
        "position": made.positions().get(job_id),
        "places": _places_to_json(placements),
        "waiting": len(snapshot.queued),
        "running": len(snapshot.running),
        "nodes": len(snapshot.nodes),
        "then": "" if logged_plan is None else _otherwise(job_id, name, made, logged_plan, snapshot),
        "order": explain_position(snapshot, made, job_id),
    }


def _places_to_json(placements: Sequence[Placement]) -> list[dict[str, Any]]:
    """Replicas of a role with the same place are counted: a gang may have thousands."""
    places = Counter((p.role, p.node, p.gpu_model) for p in placements)
    return [
        {"role": role, "node": node, "gpu_model": model, "replicas": count}
        for (role, node, model), count in places.items()
    ]


def _verdict(job_id: JobId, made: Plan, snapshot: Snapshot) -> tuple[str, str, tuple[Placement, ...]]:
    for start in made.starts:
        if start.job_id == job_id:
            on = phrases.shortlist(sorted({placement.node for placement in start.placements}))
            return "starts", f"is started on {on}", start.placements
    if job_id in made.waits:
        return "waits", "", ()
    for preempt in made.preempts:
        if preempt.job_id == job_id:
            return "stops", preempt.sentence, ()
    running = next((view for view in snapshot.running if view.job_id == job_id), None)
    if running is not None:
        on = phrases.shortlist(sorted({node for _, node in running.nodes}))
        return "runs", f"{'is being stopped' if running.is_stopping else 'runs'} on {on}", ()
    return "absent", "neither waits for a place nor runs at that time", ()


def _otherwise(job_id: JobId, name: str, made: Plan, logged_plan: Plan, snapshot: Snapshot) -> str:
    """What the logged plan says of the job; empty if it does the same with it for the same kind of reason."""
    verdict, sentence, placements = _verdict(job_id, logged_plan, snapshot)
    reason, now = logged_plan.waits.get(job_id), made.waits.get(job_id)
    now_verdict, _, now_placements = _verdict(job_id, made, snapshot)
    is_same_reason = (None if reason is None else reason.code) == (None if now is None else now.code)
    if (verdict, placements) == (now_verdict, now_placements) and is_same_reason:
        return ""
    return sentence if reason is None else addressed_to(job_id, name, reason.sentence, reason.numbers)
