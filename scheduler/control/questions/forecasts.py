"""Answering what users ask the planner: with its own look at the cluster as the tick sees it, or as a tick saw it then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import structlog
from sqlalchemy.orm import Session

from core.db.engine import unit_of_work
from core.db.repositories import questions
from core.db.repositories.questions import ERROR, ForecastQuestion, OpenQuestion, QuestionKind
from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Gang
from scheduler.control.context import ControlContext
from scheduler.control.planning.plan_log import PlanLogEntry, entry_at, first_entry_at
from scheduler.control.planning.poison_jobs import PoisonJobFilter
from scheduler.control.planning.snapshot import PlannerInputs, SnapshotCache, load_snapshot, reason_to_json
from scheduler.control.questions.explain import PlannerRecord, explanation
from scheduler.control.studies.insight import StudyQuestion, answer_study_question, load_study_question
from scheduler.planning.forecast.durations import JobTraits
from scheduler.planning.forecast.start_times import StartForecast
from scheduler.planning.forecast.what_if import Alternative, Forecast, changed_cluster, forecast
from scheduler.planning.model import Placement, Plan, QueuedGang, Snapshot
from scheduler.planning.planner import plan

log = structlog.get_logger(__name__)

# Each answer plans the whole queue; between two rounds the thread is free for what else was rung for.
_AT_ONCE: Final = 4
# No job has such an id: those of one that is only thought of sort behind all others of its moment.
_NOT_SUBMITTED: Final = JobId("~")
_FAILED: Final = (
    "The planner could not answer this, which is a bug; the scheduler's log says where (question.failed). Asking the "
    "same again will not help."
)
_NOT_KEPT: Final = "No plan of that time is kept; {}. Without a time, the present is explained."


class Forecaster:
    """Answers; one per process. Two processes may answer the same: the answers are equally good."""

    def __init__(self, control: ControlContext) -> None:
        self._control = control
        self._cache = SnapshotCache()
        self._poison_filter = PoisonJobFilter()

    def answer(self) -> None:
        """Answer everybody who waits for it now. Harmless to repeat; without a question it costs one look.

        Raises:
            Unavailable: the database is away.
        """
        control = self._control
        while True:
            with unit_of_work(control.sessions, read_only=True, is_snapshot=True) as session:
                now = control.clock()
                asked = questions.unanswered(session, now, _AT_ONCE)
                if not asked:
                    return
                of_studies = {
                    one.id: load_study_question(session, one.arguments)
                    for one in asked
                    if one.kind is QuestionKind.STUDY
                }
                of_planner = [one for one in asked if one.kind is not QuestionKind.STUDY]
                loaded, records = None, {}
                if of_planner:
                    can_grow = control.can_change_worlds
                    loaded = load_snapshot(session, self._cache, now, can_grow=can_grow)
                    records = {one.id: _record_of(session, one) for one in of_planner}
            answers = {one: self._answer_of_study(one, read) for one, read in of_studies.items()}
            if loaded is not None:
                answers |= {one.id: self._answer(one, loaded, records[one.id]) for one in of_planner}
            with unit_of_work(control.sessions) as session:
                questions.answer(session, answers, control.clock())

    def _answer(
        self, asked: OpenQuestion, loaded: PlannerInputs, record: PlanLogEntry | datetime | None
    ) -> dict[str, Any]:
        """One that makes the planner fail is answered all the same: asked again, it would fail again."""
        try:
            match asked.kind:
                case QuestionKind.FORECAST:
                    return self._forecast(loaded, ForecastQuestion.from_json(asked.arguments))
                case QuestionKind.EXPLANATION:
                    return self._explain(asked.arguments, loaded, record)
                case QuestionKind.SIMULATION | QuestionKind.STUDY:  # not answered here
                    return _error("internal", _FAILED)
        except Exception:
            log.exception("question.failed", question=asked.id, kind=asked.kind.value)
            return _error("internal", _FAILED)

    def _answer_of_study(self, question_id: str, read: StudyQuestion | None) -> dict[str, Any]:
        if read is None:
            return _error("not_found", "There is no such study any more.")
        try:
            return answer_study_question(read)
        except Exception:
            log.exception("question.failed", question=question_id, kind=QuestionKind.STUDY.value)
            return _error("internal", _FAILED)

    def _explain(
        self, ask: Mapping[str, Any], loaded: PlannerInputs, record: PlanLogEntry | datetime | None
    ) -> dict[str, Any]:
        if ask.get("at") is None:
            planned = self._poison_filter.plan(loaded.snapshot, loaded.generations, plan)
            return explain(ask, PlannerRecord(loaded.snapshot.now, planned.snapshot, None), planned.plan)
        if not isinstance(record, PlanLogEntry):
            oldest = "there is none at all" if record is None else f"the oldest is of {record:%Y-%m-%d %H:%M:%S} UTC"
            return _error("not_found", _NOT_KEPT.format(oldest))
        planned = PoisonJobFilter().plan(record.snapshot, {}, plan)
        seen = {job.job_id for job in record.snapshot.queued}
        aside = {job_id: reason for job_id, reason in record.plan.waits.items() if job_id not in seen}
        made = replace(planned.plan, waits={**planned.plan.waits, **aside})
        return explain(ask, PlannerRecord(record.at, planned.snapshot, record.plan), made)

    def _forecast(self, loaded: PlannerInputs, ask: ForecastQuestion) -> dict[str, Any]:
        """Jobs that the planner fails with are found only when it does: to plan for that first would cost a plan each time."""
        gang = self._gang_of(ask, loaded.snapshot)
        try:
            return _forecast_in(self._poison_filter.without_known(loaded.snapshot, loaded.generations), gang, ask)
        except Exception:
            log.warning("forecast.tried_again", exc_info=True)
            planned = self._poison_filter.plan(loaded.snapshot, loaded.generations, plan)
            return _forecast_in(planned.snapshot, gang, ask)

    def _gang_of(self, ask: ForecastQuestion, snapshot: Snapshot) -> QueuedGang:
        """One that waits keeps what it had and since when it waits; only what it asks for may be another."""
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


def _record_of(session: Session, asked: OpenQuestion) -> PlanLogEntry | datetime | None:
    """What is asked for; a moment: nothing so old is kept, the oldest is of then; ``None``: nothing at all is."""
    at = asked.arguments.get("at") if asked.kind is QuestionKind.EXPLANATION else None
    if at is None:
        return None
    try:
        return entry_at(session, datetime.fromisoformat(at)) or first_entry_at(session)
    except Exception:
        log.exception("record.unreadable", at=at)
        return None


def _forecast_in(snapshot: Snapshot, gang: QueuedGang, ask: ForecastQuestion) -> dict[str, Any]:
    try:
        seen = changed_cluster(
            snapshot,
            more_nodes=ask.more_nodes,
            like=None if ask.like is None else NodeId(ask.like),
            without=[NodeId(name) for name in ask.without],
        )
    except ValueError as error:
        field, _, _ = str(error).partition(":")
        return _error("invalid_request", str(error), f"cluster.{field}")
    return to_json(forecast(seen, gang, left_out=[NodeId(name) for name in ask.without]))


def explain(ask: Mapping[str, Any], record: PlannerRecord, made: Plan) -> dict[str, Any]:
    found = explanation(record, JobId(ask["job_id"]), ask["name"], made)
    return {
        "at": found.at.isoformat(),
        "verdict": found.verdict.value,
        "sentence": found.sentence,
        "reason": None if found.reason is None else reason_to_json(found.reason),
        "position": found.position,
        "places": places_to_json(found.placements),
        "waiting": found.waiting,
        "running": found.running,
        "nodes": found.nodes,
        "then": found.then,
        "order": found.order,
    }


def _error(code: str, sentence: str, field: str | None = None) -> dict[str, Any]:
    return {ERROR: {"code": code, "sentence": sentence, "field": field}}


def to_json(found: Forecast) -> dict[str, Any]:
    return {
        "places": places_to_json(found.placements),
        "reason": None if found.reason is None else reason_to_json(found.reason),
        "position": found.position,
        "start": None if found.start is None else start_to_json(found.start),
        "options": [_option_to_json(option) for option in found.options],
        "later": [_option_to_json(option) for option in found.later],
        "victims": [{"job_id": one.job_id, "code": one.code.value, "sentence": one.sentence} for one in found.victims],
    }


def places_to_json(placements: Sequence[Placement]) -> list[dict[str, Any]]:
    """Replicas of a role that go to the same place are counted: a gang may have thousands."""
    places = Counter((p.role, p.node, p.gpu_model) for p in placements)
    return [
        {"role": role, "node": node, "gpu_model": model, "replicas": count}
        for (role, node, model), count in places.items()
    ]


def start_to_json(start: StartForecast) -> dict[str, Any]:
    return {
        "code": start.code.value,
        "sentence": start.sentence,
        "early_at": _moment(start.early_at),
        "likely_at": _moment(start.likely_at),
        "late_at": _moment(start.late_at),
        "nodes": list(start.nodes),
    }


def _moment(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _option_to_json(option: Alternative) -> dict[str, Any]:
    return {
        "code": option.code.value,
        "sentence": option.sentence,
        "roles": list(option.roles),
        "field": option.field,
        "value": option.value,
        "start": None if option.start is None else start_to_json(option.start),
    }
