"""Results of a study's trials as the proposals want them, kept from round to round. May be lost at any time."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session
from trainmaster.studies import StudySpec

from core.db.repositories import studies
from core.domain.studies.results import values_of
from scheduler.tuning import Observed


class History:
    """A trial's result never changes, so only those that are new are read."""

    def __init__(self) -> None:
        self._known: dict[int, Observed] = {}

    @property
    def results(self) -> Sequence[Observed]:
        """By number of the trials."""
        return [self._known[number] for number in sorted(self._known)]

    def refresh(self, session: Session, study_id: str, spec: StudySpec, count: int) -> None:
        """Read what is new. ``count``: how many trials have a result."""
        if count == len(self._known):
            return
        names = [metric.name for metric in spec.metrics]
        fresh = [number for number in studies.numbers_with_result(session, study_id) if number not in self._known]
        some = fresh if len(fresh) <= 500 else None
        for row in studies.results_of(session, study_id, numbers=some):
            values = values_of(row.result, names)
            if values is not None:
                self._known[row.number] = Observed(row.parameters, values, row.memo)
