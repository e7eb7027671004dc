"""The history of a job, written in the transaction of the move itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy.orm import Session

from core.db.repositories.events import append_event

SCHEDULER: Final = "scheduler"
EXECUTOR: Final = "executor"


@dataclass(frozen=True, slots=True)
class Journal:
    """Adds events to the history of one job."""

    session: Session
    project_id: str
    job_id: str
    attempt_id: str | None = None

    def add(
        self,
        kind: str,
        reason: str,
        *,
        at: datetime,
        actor: str = SCHEDULER,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one event. ``kind`` is noun.verb; ``reason`` is a sentence for users."""
        append_event(
            self.session,
            at=at,
            kind=kind,
            actor=actor,
            project_id=self.project_id,
            job_id=self.job_id,
            attempt_id=self.attempt_id,
            reason=reason,
            data=data,
        )
