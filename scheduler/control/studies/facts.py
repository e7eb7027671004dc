"""What one reconcile pass knows of a study, as values, and what the parts of the pass share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session
from trainmaster.studies import StudySpec

from core.db.engine import UntypedRow
from core.db.repositories import studies
from core.db.repositories.events import append_event
from core.db.tables import Membership, Project, Study, User
from core.domain.jobs.states import DesiredState, JobState
from core.domain.studies.budget import CHOSEN, IGNORED_FAILURES, BudgetUsage
from core.domain.studies.states import StudyState
from scheduler.control.context import ControlContext
from scheduler.control.fence import RenewedLease
from scheduler.control.journal import SCHEDULER
from scheduler.control.studies.history import StudyHistory

# Roles of a project's members who may submit jobs to it.
_MAY_SUBMIT: Final = ("member", "admin")
# Key of a trial's memo: the step of the last rung of successive halving that it passed.
_PASSED: Final = "passed"


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """``job_state``: ``None`` where a program tries the point without a job; ``heard_at``: then its last sign of life.

    ``is_decided``: its script has finished, and the end of its job is about to be written.
    """

    number: int
    parameters: Mapping[str, Any]
    memo: Mapping[str, Any]
    stop: Mapping[str, Any] | None
    job_id: str | None
    job_state: JobState | None
    is_cancelled: bool
    exit: Mapping[str, Any] | None
    finished_at: datetime | None
    started_at: datetime | None
    gpu_s: float
    shape: str | None
    heard_at: datetime
    is_decided: bool = False

    @property
    def is_over(self) -> bool:
        return self.job_state is not None and self.job_state.is_terminal

    @property
    def passed_step(self) -> int:
        """The step of the last rung that a stopping rule let it pass; 0: none."""
        return int(self.memo.get(_PASSED, 0))

    def memo_with(self, passed_step: int) -> dict[str, Any]:
        """The memo once it has passed this rung."""
        return {**self.memo, _PASSED: passed_step}


@dataclass(frozen=True, slots=True)
class StudyFacts:
    """A study and its running trials. ``blocked``: why no trial may be submitted in its user's name; empty: it may.

    ``prior_results``: of the studies that it was warm-started from. ``chosen``: which algorithm ``auto`` is, and why,
    as written.
    """

    id: str
    name: str
    project_id: str
    project: str
    user_id: str
    state: StudyState
    generation: int
    spec: StudySpec
    seed: int
    note: str
    output_volume: str
    output_path: str | None
    trial_count: int
    proposed: int
    prepared: Sequence[Mapping[str, Any]]
    prepared_at: int
    prior_results: Sequence[Mapping[str, Any]]
    spent: BudgetUsage
    winner: Mapping[str, Any] | None
    running: tuple[RunningTrial, ...]
    blocked: str = ""
    chosen: Mapping[str, Any] | None = None

    @property
    def ended_count(self) -> int:
        return self.spent.trial_count - self.spent.running


def load_study(session: Session, study_id: str, now: datetime, history: StudyHistory) -> StudyFacts | None:
    """``None``: there is none of this id, or it was deleted. ``history``: of this study; it is refreshed."""
    found = session.get(Study, study_id, populate_existing=True)
    if found is None or found.deleted_at is not None:
        return None
    running = tuple(_trial(row, now) for row in studies.running_trials(session, study_id))
    spec = StudySpec.model_validate(found.spec)
    names = [metric.name for metric in spec.metrics]
    history.refresh(session, study_id, names, found.trial_count, {trial.number for trial in running})
    gpu_s = sum(trial.gpu_s for trial in running)
    spent = history.spent(len(running), gpu_s, max(timedelta(), now - found.started_at))
    spent = replace(spent, ignored_failures=found.spec.get(IGNORED_FAILURES, 0))
    return StudyFacts(
        id=found.id,
        name=found.name,
        project_id=found.project_id,
        project=session.get_one(Project, found.project_id).name,
        user_id=found.user_id,
        state=StudyState(found.state),
        generation=found.generation,
        spec=spec,
        seed=found.seed,
        note=found.note,
        output_volume=found.output_volume,
        output_path=found.output_path,
        trial_count=found.trial_count,
        proposed=found.proposed_count,
        prepared=tuple(found.prefetched_points),
        prepared_at=found.prefetched_after,
        prior_results=tuple(found.prior_trials),
        spent=spent,
        winner=found.best_trial,
        running=running,
        chosen=found.spec.get(CHOSEN),
        blocked=_why_blocked(session, found) if found.spec.get("template") is not None else "",
    )


def _why_blocked(session: Session, study: Study) -> str:
    query = (
        select(User.name, User.is_admin, User.disabled_at, Project.name.label("project"), Membership.role)
        .select_from(User)
        .join(Project, Project.id == study.project_id)
        .outerjoin(Membership, (Membership.user_id == User.id) & (Membership.project_id == Project.id))
        .where(User.id == study.user_id)
    )
    row = session.execute(query).one()
    is_member = row.is_admin or row.role in _MAY_SUBMIT
    if row.disabled_at is None and is_member:
        return ""
    why = "is disabled" if row.disabled_at is not None else f"may not submit jobs to project {row.project} any more"
    return f"user {row.name}, in whose name its trials run, {why}"


def _trial(row: UntypedRow, now: datetime) -> RunningTrial:
    gpu_s = 0.0
    if row.job_gpu_milli:
        gpu_s = row.job_gpu_s  # of ended attempts
        if row.attempt_started_at is not None and row.attempt_ended_at is None:
            gpu_s += row.job_gpu_milli / 1000 * max(0.0, (now - row.attempt_started_at).total_seconds())
    return RunningTrial(
        number=row.number,
        parameters=row.parameters,
        memo=row.memo,
        stop=row.stop,
        job_id=row.job_id,
        job_state=None if row.job_state is None else JobState(row.job_state),
        is_cancelled=row.job_wanted == DesiredState.CANCEL,
        exit=row.job_exit,
        finished_at=row.job_finished_at,
        started_at=row.job_started_at,
        gpu_s=gpu_s,
        shape=row.job_shape,
        heard_at=row.heartbeat_at or row.created_at,
        is_decided=row.attempt_decided_at is not None and row.attempt_ended_at is None,
    )


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
