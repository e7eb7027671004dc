"""Results of trials, kept from one request to the next: what a trial came to never changes, so only what is new is read."""

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

# Studies whose results are kept; one of 10,000 trials takes two megabytes.
_STUDIES: Final = 64
# More are read all together: a statement takes a limited number of values.
_NAMED: Final = 500
_WITH_RESULT: Final = (TrialState.SUCCEEDED.value, TrialState.STOPPED.value)


class _Kept:
    def __init__(self) -> None:
        self._studies: OrderedDict[str, dict[int, TrialResult | None]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, study_id: str) -> dict[int, TrialResult | None]:
        with self._lock:
            return dict(self._studies.get(study_id, {}))

    def keep(self, study_id: str, found: dict[int, TrialResult | None]) -> None:
        with self._lock:
            if len(self._studies.get(study_id, {})) <= len(found):
                self._studies[study_id] = found
                self._studies.move_to_end(study_id)
            while len(self._studies) > _STUDIES:
                self._studies.popitem(last=False)


_kept: Final = _Kept()


class _Fronts:
    """The Pareto front of each study, as of so many results: with thousands of trials it takes long to find."""

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
            while len(self._found) > _STUDIES:
                self._found.popitem(last=False)
        return front


_fronts: Final = _Fronts()


def known_front(study_id: str, results: Sequence[TrialResult], goals: Sequence[Goal]) -> list[TrialResult]:
    """Of ``results``, all that the study has, those that no other one betters in every metric, by number."""
    return list(_fronts.of(study_id, results, goals))


def known_results(session: Session, study_id: str, names: Sequence[str]) -> list[TrialResult]:
    """Every trial with a result, by number. ``names``: the study's metrics, which are the same for ever."""
    ended = (Trial.study_id == study_id, Trial.state.in_(_WITH_RESULT))
    count = session.execute(select(func.count()).where(*ended)).scalar_one()
    found = _kept.of(study_id)
    if count != len(found):
        fresh = [n for n in session.scalars(select(Trial.number).where(*ended)) if n not in found]
        query = select(Trial.number, Trial.result).where(*ended)
        if len(fresh) <= _NAMED:
            query = query.where(Trial.number.in_(fresh))
        for row in session.execute(query):
            values = values_of(row.result, names)
            found[row.number] = None if values is None else TrialResult(row.number, values)
        _kept.keep(study_id, found)
    return [one for _, one in sorted(found.items()) if one is not None]
