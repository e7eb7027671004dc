"""What the parts of one reconcile pass about a study share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session
from trainmaster.studies import StudySpec

from core.db.repositories.events import append_event
from scheduler.control.context import ControlContext
from scheduler.control.fence import RenewedLease
from scheduler.control.journal import SCHEDULER
from scheduler.control.studies.facts import StudyFacts
from scheduler.control.studies.history import StudyHistory


@dataclass(slots=True)
class StudyPassContext:
    """``facts`` are replaced when a part of the pass has changed the study's row."""

    control: ControlContext
    lease: RenewedLease
    facts: StudyFacts
    history: StudyHistory
    now: datetime

    @property
    def spec(self) -> StudySpec:
        return self.facts.spec

    def add_event(self, session: Session, kind: str, reason: str, *, trial: int | None = None) -> None:
        """One event of the study, or of one of its trials, for users."""
        data: dict[str, Any] = {"study": self.facts.id, "name": self.facts.name}
        if trial is not None:
            data["trial"] = trial
        append_event(
            session, at=self.now, kind=kind, actor=SCHEDULER, project_id=self.facts.project_id, reason=reason, data=data
        )

    def notify(self, wakeups: Sequence[tuple[str, str]]) -> None:
        """Send the wake-ups, after the commit."""
        for topic, key in dict.fromkeys(wakeups):
            self.control.wakeup.notify(topic, key)
