"""A cache of trial results: the result of an ended trial never changes, so each request reads only the new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from trainmaster.studies import Goal

from api.app.cache import LruCache
from core.db.tables import Trial
from core.domain.studies.results import TrialResult, pareto, values_of
from core.domain.studies.states import TrialState

# Studies in the cache; one of 10,000 trials takes two megabytes.
_STUDY_LIMIT: Final = 64
# Beyond this all trials are read: the number of parameters of a statement is limited.
_PARAMETER_LIMIT: Final = 500
_WITH_RESULT: Final = (TrialState.SUCCEEDED.value, TrialState.STOPPED.value)


_results: Final = LruCache[str, Mapping[int, TrialResult | None]](_STUDY_LIMIT)
# Each study's Pareto front with its number of results: with thousands of trials it takes long to compute.
_fronts: Final = LruCache[str, tuple[int, list[TrialResult]]](_STUDY_LIMIT)


def cached_front(study_id: str, results: Sequence[TrialResult], goals: Sequence[Goal]) -> list[TrialResult]:
    """The Pareto front of ``results``, which must be all results of the study, in order of number."""
    known = _fronts.get(study_id)
    if known is None or known[0] != len(results):
        known = (len(results), pareto(results, goals))
        _fronts.put(study_id, known)
    return list(known[1])


def cached_results(session: Session, study_id: str, names: Sequence[str]) -> list[TrialResult]:
    """All results of a study, in order of number. ``names``: the study's metrics, which never change."""
    ended = (Trial.study_id == study_id, Trial.state.in_(_WITH_RESULT))
    count = session.execute(select(func.count()).where(*ended)).scalar_one()
    found = dict(_results.get(study_id) or {})
    if count != len(found):
        fresh = [n for n in session.scalars(select(Trial.number).where(*ended)) if n not in found]
        query = select(Trial.number, Trial.result).where(*ended)
        if len(fresh) <= _PARAMETER_LIMIT:
            query = query.where(Trial.number.in_(fresh))
        for row in session.execute(query):
            values = values_of(row.result, names)
            found[row.number] = None if values is None else TrialResult(row.number, values)
        _results.put(study_id, found)
    return [result for _, result in sorted(found.items()) if result is not None]
