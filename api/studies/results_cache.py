"""A cache of trial results: the result of an ended trial never changes, so each request reads only the new ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from trainmaster.studies import Goal

from core.db.tables import Trial
from core.domain.studies.results import TrialResult, pareto, values_of
from core.domain.studies.states import TrialState

# Studies in the cache; one of 10,000 trials takes two megabytes.
_STUDY_LIMIT: Final = 64
# Beyond this all trials are read: the number of parameters of a statement is limited.
_PARAMETER_LIMIT: Final = 500
_WITH_RESULT: Final = (TrialState.SUCCEEDED.value, TrialState.STOPPED.value)


class _ResultsCache:
    def __init__(self) -> None:
        self._studies: OrderedDict[str, dict[int, TrialResult | None]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, study_id: str) -> dict[int, TrialResult | None]:
        with self._lock:
            return dict(self._studies.get(study_id, {}))

    def put(self, study_id: str, found: dict[int, TrialResult | None]) -> None:
        with self._lock:
            if len(self._studies.get(study_id, {})) <= len(found):
                self._studies[study_id] = found
                self._studies.move_to_end(study_id)
            while len(self._studies) > _STUDY_LIMIT:
                self._studies.popitem(last=False)


_results: Final = _ResultsCache()


class _Fronts:
    """A cache of each study's Pareto front by its number of results: with thousands of trials it takes long to
    compute.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[str, tuple[int, list[TrialResult]]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, study_id: str, results: Sequence[TrialResult], goals: Sequence[Goal]) -> list[TrialResult]:
        with self._lock:
            count, front = self._found.get(study_id, (-1, []))
        if count == len(results):
            return front
        front = pareto(results, goals)
        with self._lock:
            self._found[study_id] = (len(results), front)
            self._found.move_to_end(study_id)
            while len(self._found) > _STUDY_LIMIT:
                self._found.popitem(last=False)
        return front


_fronts: Final = _Fronts()


def cached_front(study_id: str, results: Sequence[TrialResult], goals: Sequence[Goal]) -> list[TrialResult]:
    """The Pareto front of ``results``, which must be all results of the study, in order of number."""
    return list(_fronts.of(study_id, results, goals))


def cached_results(session: Session, study_id: str, names: Sequence[str]) -> list[TrialResult]:
    """All results of a study, in order of number. ``names``: the study's metrics, which never change."""
    ended = (Trial.study_id == study_id, Trial.state.in_(_WITH_RESULT))
    count = session.execute(select(func.count()).where(*ended)).scalar_one()
    found = _results.of(study_id)
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
