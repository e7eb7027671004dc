"""Trials whose program went away: whoever asks for a point and is never heard of again must not hold its place for ever."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

from core.db.leases import HeldLease
from core.db.repositories import studies
from core.db.repositories.events import append_event
from core.domain.studies.states import StudyState
from scheduler.control import fence
from scheduler.control.context import ControlContext
from scheduler.control.journal import SCHEDULER
from scheduler.control.studies.facts import StudyFacts
from scheduler.tuning import Proposal

# In the memo of a point that is tried once more. Not a third time: it may be the point that its programs die of.
RETRY_KEY: Final = "again"


def expire_trials(control: ControlContext, lease: HeldLease, facts: StudyFacts, now: datetime) -> bool:
    """End the trials that nothing was heard of for the study's ``lost_after``; whether there were any.

    Each counts as a trial that failed. Its point was not tried, so it comes first when somebody asks again.

    Raises:
        StaleWrite: the study moved meanwhile; look again.
    """
    limit = now - timedelta(seconds=facts.spec.lost_after_s)
    silent = [trial for trial in facts.running if trial.job_id is None and trial.heard_at <= limit]
    if not silent:
        return False
    reason = f"Lost: whoever asked for it told no result and gave no sign of life for {facts.spec.lost_after_s:g} s (lost_after)."
    again: list[dict[str, Any]] = []
    with fence.fenced(control, lease) as session:
        for trial in silent:
            if not studies.lose_trial(session, facts.id, trial.number, now, unheard_since=limit, reason=reason):
                continue  # it was heard of in this moment
            data = {"study": facts.id, "name": facts.name, "trial": trial.number}
            append_event(
                session,
                at=now,
                kind="trial.lost",
                actor=SCHEDULER,
                project_id=facts.project_id,
                reason=reason,
                data=data,
            )
            if RETRY_KEY not in trial.memo:
                again.append(asdict(Proposal(dict(trial.parameters), {**trial.memo, RETRY_KEY: trial.number})))
        if again and facts.state in (StudyState.RUNNING, StudyState.PAUSED):
            studies.change_study(session, facts.id, facts.generation, now, prefetched_points=[*again, *facts.prepared])
    return True
