"""Results of a study's trials as the proposals want them, kept from round to round. May be lost at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy.orm import Session
from trainmaster.studies import StudySpec

from core.db.repositories import studies
from core.domain.studies.results import values_of
from scheduler.tuning import Observed

# More are read all together: a statement takes a limited number of values.
_NAMED: Final = 500


class History:
    """A trial's result never changes, so only those that are new are read."""

    def __init__(self) -> None:
        self._known: dict[int, Observed] = {}
        self._spoilt: dict[int, Mapping[str, Any]] = {}

    @property
    def spoilt(self) -> Sequence[Mapping[str, Any]]:
        """Points of trials that came to nothing."""
        return list(self._spoilt.values())

    @property
    def results(self) -> Sequence[Observed]:
        """By number of the trials."""
        return [self._known[number] for number in sorted(self._known)]

    def refresh(self, session: Session, study_id: str, spec: StudySpec, count: int) -> None:
        """Read what is new. ``count``: how many trials are over."""
        if count == len(self._known) + len(self._spoilt):
            return
        names = [metric.name for metric in spec.metrics]
        seen = self._known.keys() | self._spoilt.keys()
        fresh = [number for number in studies.ended_numbers(session, study_id) if number not in seen]
        some = fresh if len(fresh) <= _NAMED else None
        for row in studies.ended_trials(session, study_id, numbers=some):
            values = values_of(row.result, names)
            if values is not None:
                self._known[row.number] = Observed(row.parameters, values, row.memo)
            else:
                self._spoilt[row.number] = row.parameters
