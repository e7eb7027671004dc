"""Which parameters matter, and what more trials would bring: worked out by a scheduler, kept here until a trial ends."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from anyio import to_thread
from trainmaster.studies import StudySpec
from trainmaster.wire.studies import StudyImportance, StudyPrediction

from api.app.unit_of_work import AppContext
from api.forecasts.service import answer
from api.studies.access import StudyAccess
from api.studies.views import results
from core.db.repositories.questions import QuestionKind
from core.domain.errors import InvalidRequest
from core.domain.studies.results import best

_ANSWERS: Final = 256
_HORIZON: Final = 200  # trials ahead at most, unless more are asked for
_LEAST_AHEAD: Final = 10

_answers: Final[OrderedDict[tuple[Any, ...], Mapping[str, Any]]] = OrderedDict()
_lock: Final = threading.Lock()


async def importance(context: AppContext, access: StudyAccess, metric: str | None) -> StudyImportance:
    """Of one metric; ``None``: of the only one, or of all of several together.

    Raises:
        InvalidRequest: the study has no such metric.
        Unavailable: no scheduler answers in time.
    """
    study_id, spec, count, _ = await to_thread.run_sync(_read, context, access)
    names = [one.name for one in spec.metrics]
    if metric is not None and metric not in names:
        raise InvalidRequest(f"metric: the study has {', '.join(names)}, not {metric!r}.", field="metric")
    told_of = metric or (names[0] if len(names) == 1 else None)
    asked = {"study_id": study_id, "what": "importance", "metric": told_of}
    found = await _asked(context, access, count, asked)
    return StudyImportance(metric=told_of, **found)


async def prediction(context: AppContext, access: StudyAccess, more: int | None) -> StudyPrediction:
    """What ``more`` trials would bring; unstated, those of the budget that are left or, with none, as many as there were.

    Raises:
        Unavailable: no scheduler answers in time.
    """
    study_id, spec, count, leader = await to_thread.run_sync(_read, context, access)
    left = (spec.budget.trials or 0) - count
    ahead = more or max(_LEAST_AHEAD, min(left if left > 0 else count, _HORIZON))
    asked = {"study_id": study_id, "what": "prediction", "more": ahead}
    found = await _asked(context, access, count, asked)
    return StudyPrediction(metric=spec.metrics[0].name, best=leader, **found)


def _read(context: AppContext, access: StudyAccess) -> tuple[str, StudySpec, int, float | None]:
    with context.read() as work:
        row, _ = access.load(work.session)
        spec = StudySpec.model_validate(row.spec)
        found = results(work.session, row.id, spec)
    leader = best(found, spec.goals)
    return row.id, spec, len(found), leader.values[0] if leader else None


async def _asked(context: AppContext, access: StudyAccess, count: int, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The scheduler's answer; the same one as long as no other trial has a result."""
    key = (count, *sorted((name, str(value)) for name, value in asked.items()))
    with _lock:
        known = _answers.get(key)
    if known is None:
        known = await answer(context, access.caller, QuestionKind.STUDY, asked)
        with _lock:
            _answers[key] = known
            while len(_answers) > _ANSWERS:
                _answers.popitem(last=False)
    return known
