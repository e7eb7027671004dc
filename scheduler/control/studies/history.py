"""Results of a study's trials as the proposals want them, kept from round to round. May be lost at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy.orm import Session
from trainmaster.studies import StudySpec

from core.db.repositories import studies
from core.domain.studies.results import values_of
from core.domain.studies.states import TrialState
from core.domain.studies.stopping import Curve
from scheduler.tuning import Observed

# More are read all together: a statement takes a limited number of values.
_NAMED: Final = 500


class History:
    """A trial's result never changes, so only those that are new are read."""

    def __init__(self) -> None:
        self._known: dict[int, Observed] = {}
        self._spoilt: dict[int, Mapping[str, Any]] = {}
        self._curves: dict[int, Curve] = {}
        # Of trials that are over: whom each goes on from and stands for, and whose heirs may stand for it.
        self._memos: dict[int, Mapping[str, Any]] = {}
        self._parents: dict[int, tuple[int, ...]] = {}
        self._judged_at: datetime | None = None

    def is_due(self, now: datetime, every: timedelta) -> bool:
        """Whether the trials' curves were not judged for so long; if so, they are now."""
        is_due = self._judged_at is None or now - self._judged_at >= every
        if is_due:
            self._judged_at = now
        return is_due

    def curves(self, session: Session, study_id: str, *, limit: int) -> list[Curve]:
        """Of the newest trials that are over, at most ``limit``."""
        ended = sorted(self._known, reverse=True)[:limit]
        fresh = [number for number in ended if number not in self._curves]
        some = fresh if len(fresh) <= _NAMED else None
        for row in studies.curves_of(session, study_id, numbers=some, limit=limit) if fresh else ():
            told = row.curve
            is_over = row.state == TrialState.SUCCEEDED
            self._curves[row.number] = Curve(row.number, tuple(told["steps"]), tuple(told["values"]), is_over)
        self._curves = {number: self._curves.get(number) or Curve(number, (), ()) for number in ended}
        return [curve for curve in self._curves.values() if curve]

    @property
    def spoilt(self) -> Sequence[Mapping[str, Any]]:
        """Points of trials that came to nothing."""
        return list(self._spoilt.values())

    @property
    def results(self) -> Sequence[Observed]:
        """By number of the trials."""
        return [self._known[number] for number in sorted(self._known)]

    @property
    def by_number(self) -> Mapping[int, Observed]:
        """Every trial with a result."""
        return self._known

    @property
    def memos(self) -> Mapping[int, Mapping[str, Any]]:
        """What trials that went on from others', and are over, noted of that, by number."""
        return self._memos

    @property
    def gave_way(self) -> Mapping[int, tuple[int, ...]]:
        """Members of a population that ended for an heir, each with those whose heir it may be, the best first."""
        return self._parents

    def refresh(self, session: Session, study_id: str, spec: StudySpec, count: int) -> None:
        """Read what is new. ``count``: how many trials are over."""
        if count == len(self._known) + len(self._spoilt):
            return
        names = [metric.name for metric in spec.metrics]
        seen = self._known.keys() | self._spoilt.keys()
        fresh = [number for number in studies.ended_numbers(session, study_id) if number not in seen]
        some = fresh if len(fresh) <= _NAMED else None
        for row in studies.ended_trials(session, study_id, numbers=some):
            if row.memo.get("parent") is not None:
                self._memos[row.number] = row.memo
            if row.stop is not None and row.stop.get("parents"):
                self._parents[row.number] = tuple(row.stop["parents"])
            values = values_of(row.result, names)
            if values is not None:
                self._known[row.number] = Observed(row.parameters, values, row.memo)
            else:
                self._spoilt[row.number] = row.parameters
