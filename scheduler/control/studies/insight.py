"""Insight into a study: which parameters matter, and what more trials would bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy.orm import Session
from trainmaster.studies import Space, StudySpec

from core.db.repositories import studies
from core.db.tables import Study
from core.domain.studies.results import values_of
from core.domain.studies.states import TrialState
from scheduler.tuning import ObservedTrial
from scheduler.tuning.prediction import predict


@dataclass(frozen=True, slots=True)
class StudyQuestion:
    """A question about a study, and what was read for it. ``results``: of its own trials, by number."""

    ask: Mapping[str, Any]
    spec: StudySpec
    seed: int
    results: Sequence[ObservedTrial]


def load_study_question(session: Session, ask: Mapping[str, Any]) -> StudyQuestion | None:
    """``None``: the study does not exist any more."""
    row = session.get(Study, ask["study_id"])
    if row is None or row.deleted_at is not None:
        return None
    spec = StudySpec.model_validate(row.spec)
    names = [metric.name for metric in spec.metrics]
    ended = (row for row in studies.ended_trials(session, row.id) if TrialState(row.state).has_result)
    read = ((one.parameters, values_of(one.result, names)) for one in ended)
    return StudyQuestion(
        ask, spec, row.seed, [ObservedTrial(point, values) for point, values in read if values is not None]
    )


def answer_study_question(read: StudyQuestion) -> dict[str, Any]:
    """The answer, as JSON; ``ask`` has ``what``: ``importance`` (and ``metric``, or null) or ``prediction`` (and
    ``more``).
    """
    goals = read.spec.goals
    if read.ask["what"] == "prediction":
        sign = read.spec.metrics[0].sign
        found = predict([sign * one.values[0] for one in read.results], read.ask["more"], read.seed)
        points = [
            {"more": one.more, "likely": sign * one.likely, "low": min(ends), "high": max(ends)}
            for one in found.points
            for ends in [(sign * one.low, sign * one.high)]
        ]
        return {**asdict(found), "points": points}
    from scheduler.tuning.importance import importance  # imports Optuna, only when it is needed

    metrics = [metric.name for metric in read.spec.metrics]
    metric = read.ask.get("metric")
    place = None if metric is None else metrics.index(metric)
    return asdict(importance(Space.of(read.spec), goals, read.results, place))
