"""Parameter importance, and prediction of further trials: computed by a scheduler, cached here until a trial ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from anyio import to_thread
from trainmaster.studies import StudySpec
from trainmaster.wire.studies import StudyImportance, StudyPrediction

from api.app.cache import LruCache
from api.app.unit_of_work import AppContext
from api.forecasts.service import answer
from api.studies.access import StudyAccess
from api.studies.views import results
from core.db.repositories.questions import QuestionKind
from core.domain.errors import InvalidRequest
from core.domain.studies.results import best

_ANSWER_LIMIT: Final = 256
_HORIZON: Final = 200  # trials ahead at most, unless the request states more
_MIN_AHEAD: Final = 10

_answers: Final = LruCache[tuple[Any, ...], Mapping[str, Any]](_ANSWER_LIMIT)


async def importance(context: AppContext, access: StudyAccess, metric: str | None) -> StudyImportance:
    """The importance of the parameters for one metric; ``None``: for the only one, or for all metrics together.

    Raises:
        InvalidRequest: the study has no such metric.
        Unavailable: no scheduler answers in time.
    """
    study_id, spec, count, _ = await to_thread.run_sync(_read, context, access)
    names = [item.name for item in spec.metrics]
    if metric is not None and metric not in names:
        raise InvalidRequest(f"metric: the study has {', '.join(names)}, not {metric!r}.", field="metric")
    reported_metric = metric or (names[0] if len(names) == 1 else None)
    question = {"study_id": study_id, "what": "importance", "metric": reported_metric}
    found = await _cached_answer(context, access, count, question)
    return StudyImportance(metric=reported_metric, **found)


async def prediction(context: AppContext, access: StudyAccess, more: int | None) -> StudyPrediction:
    """The expected best after ``more`` trials; unstated: the rest of the budget or, without one, as many as there were.

    Raises:
        Unavailable: no scheduler answers in time.
    """
    study_id, spec, count, leader = await to_thread.run_sync(_read, context, access)
    left = (spec.budget.trials or 0) - count
    ahead = more or max(_MIN_AHEAD, min(left if left > 0 else count, _HORIZON))
    question = {"study_id": study_id, "what": "prediction", "more": ahead}
    found = await _cached_answer(context, access, count, question)
    return StudyPrediction(metric=spec.metrics[0].name, best=leader, **found)


def _read(context: AppContext, access: StudyAccess) -> tuple[str, StudySpec, int, float | None]:
    with context.read() as work:
        row, _ = access.load(work.session)
        spec = StudySpec.model_validate(row.spec)
        found = results(work.session, row.id, spec)
    leader = best(found, spec.goals)
    return row.id, spec, len(found), leader.values[0] if leader else None


async def _cached_answer(
    context: AppContext, access: StudyAccess, count: int, question: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The scheduler's answer, cached as long as no further trial has a result."""
    key = (count, *sorted((name, str(value)) for name, value in question.items()))
    known = _answers.get(key)
    if known is None:
        known = await answer(context, access.caller, QuestionKind.STUDY, question)
        _answers.put(key, known)
    return known
