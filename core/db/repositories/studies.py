"""Studies and trials. Every write of a study compares its generation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

from sqlalchemy import Table, and_, bindparam, exists, func, or_, select, update
from sqlalchemy.orm import Session

from core.db.engine import UntypedRow
from core.db.tables import Attempt, Job, Study, Trial
from core.domain.errors import StaleWrite
from core.domain.jobs.states import JobState
from core.domain.studies.states import StudyState, TrialState

_LIVE: Final = (StudyState.RUNNING.value, StudyState.STOPPING.value)
# Built once: building the statement takes longer than executing it.
_RUNNING: Final = select(func.count()).where(
    Trial.study_id == bindparam("study_id"), Trial.state == TrialState.RUNNING.value
)
# On the table: a client that asks for a point waits for this, and the ORM takes twice as long.
_STUDIES: Final = cast("Table", Study.__table__)
_CHANGED: Final = update(_STUDIES).where(
    _STUDIES.c.id == bindparam("this_study"),
    _STUDIES.c.generation == bindparam("seen_generation"),
    _STUDIES.c.deleted_at.is_(None),
)
_TRIALS: Final = cast("Table", Trial.__table__)
_MEMO: Final = (
    update(_TRIALS)
    .where(_TRIALS.c.study_id == bindparam("this_study"), _TRIALS.c.number == bindparam("this_number"))
    .values(memo=bindparam("new_memo"))
)
_WITH_RESULT: Final = (TrialState.SUCCEEDED.value, TrialState.STOPPED.value)


def live_studies(session: Session, *, after: str = "", limit: int = 1000) -> Sequence[str]:
    """Ids of studies to reconcile: running or stopping, or with running trials; by id, after ``after``."""
    has_trials = exists().where(Trial.study_id == Study.id, Trial.state == TrialState.RUNNING.value)
    query = select(Study.id).where(
        Study.id > after,
        Study.deleted_at.is_(None),
        or_(Study.state.in_(_LIVE), (Study.state == StudyState.PAUSED.value) & has_trials),
    )
    return session.scalars(query.order_by(Study.id).limit(limit)).all()


def change_study(session: Session, study_id: str, generation: int, now: datetime, **values: Any) -> int:
    """Optimistic update; returns the next generation.

    Raises:
        StaleWrite: the study has changed since ``generation`` was read.
    """
    session.flush()  # as the ORM does before a statement
    where = {"this_study": study_id, "seen_generation": generation}
    hit = session.connection().execute(_CHANGED, {**values, "generation": generation + 1, "updated_at": now, **where})
    if hit.rowcount != 1:
        raise StaleWrite("the study has changed since it was read")
    return generation + 1


def end_trial(session: Session, study_id: str, number: int, state: TrialState, now: datetime, **values: Any) -> None:
    """End a running trial.

    Raises:
        StaleWrite: it no longer runs.
    """
    hit = session.execute(
        update(Trial)
        .where(Trial.study_id == study_id, Trial.number == number, Trial.state == TrialState.RUNNING.value)
        .values(**values, state=state.value, ended_at=now)
        .execution_options(synchronize_session=False)
    )
    if hit.rowcount != 1:  # type: ignore[attr-defined]
        raise StaleWrite("the trial has ended already")


def change_memos(session: Session, study_id: str, memos: Mapping[int, Mapping[str, Any]]) -> None:
    """Set the memos of these trials, by number; requires the study's lease."""
    rows = [{"this_study": study_id, "this_number": number, "new_memo": memo} for number, memo in memos.items()]
    session.connection().execute(_MEMO, rows)


def expire_trial(
    session: Session, study_id: str, number: int, now: datetime, *, unheard_since: datetime, reason: str
) -> bool:
    """End a trial without a heartbeat since ``unheard_since``; returns whether that still held."""
    heard_at = func.coalesce(Trial.heartbeat_at, Trial.created_at)
    hit = session.execute(
        update(Trial)
        .where(
            Trial.study_id == study_id, Trial.number == number, Trial.state == TrialState.RUNNING.value,
            heard_at <= unheard_since,
        )
        .values(state=TrialState.FAILED.value, reason=reason, stop={"kind": "lost", "sentence": reason}, ended_at=now)
        .execution_options(synchronize_session=False)
    )  # fmt: skip
    return bool(hit.rowcount)  # type: ignore[attr-defined]


def record_heartbeats(session: Session, study_id: str, numbers: Sequence[int], now: datetime) -> None:
    """Record a heartbeat for these trials; no effect on trials that no longer run."""
    session.execute(
        update(Trial)
        .where(Trial.study_id == study_id, Trial.number.in_(numbers), Trial.state == TrialState.RUNNING.value)
        .values(heartbeat_at=now)
        .execution_options(synchronize_session=False)
    )


def numbers_of_client(session: Session, study_id: str, client: str, limit: int) -> Sequence[int]:
    """The running trials that this client asked for, by number."""
    query = select(Trial.number).where(
        Trial.study_id == study_id, Trial.state == TrialState.RUNNING.value, Trial.client == client
    )
    # Sorted here: with ORDER BY a database walks through all trials of the study in this order, instead of the few
    # running ones.
    return sorted(session.scalars(query))[:limit]


def running_trials(session: Session, study_id: str) -> Sequence[UntypedRow]:
    """(number, parameters, memo, stop, created_at, heartbeat_at) of running trials, with ``job_*`` of their jobs and
    ``attempt_*`` of the jobs' last attempts, by number.
    """
    query = (
        select(
            Trial.number, Trial.parameters, Trial.memo, Trial.stop, Trial.created_at, Trial.heartbeat_at, Trial.job_id,
            Job.state.label("job_state"), Job.desired_state.label("job_wanted"), Job.exit.label("job_exit"),
            Job.finished_at.label("job_finished_at"), Job.started_at.label("job_started_at"),
            Job.attained_gpu_s.label("job_gpu_s"), Job.gpu_milli.label("job_gpu_milli"), Job.shape.label("job_shape"),
            Attempt.started_at.label("attempt_started_at"), Attempt.ended_at.label("attempt_ended_at"),
            Attempt.decided_at.label("attempt_decided_at"),
        )
        .outerjoin(Job, Job.id == Trial.job_id)
        .outerjoin(Attempt, and_(Attempt.job_id == Job.id, Attempt.number == Job.attempt_count))
        .where(Trial.study_id == study_id, Trial.state == TrialState.RUNNING.value)
    )  # fmt: skip
    return sorted(session.execute(query), key=lambda row: row.number)  # see numbers_of_client


def trial_counts(session: Session, study_ids: Iterable[str]) -> dict[str, dict[TrialState, int]]:
    """The number of trials of each study by state."""
    found: dict[str, dict[TrialState, int]] = {study_id: {} for study_id in study_ids}
    query = select(Trial.study_id, Trial.state, func.count()).where(Trial.study_id.in_(found))
    for study_id, state, count in session.execute(query.group_by(Trial.study_id, Trial.state)):
        found[study_id][TrialState(state)] = count
    return found


def waiting_counts(session: Session, study_ids: Iterable[str]) -> dict[str, int]:
    """The number of each study's running trials whose jobs are queued; studies without any are left out."""
    query = (
        select(Trial.study_id, func.count())
        .join(Job, Job.id == Trial.job_id)
        .where(
            Trial.study_id.in_(list(study_ids)), Trial.state == TrialState.RUNNING.value,
            Job.state == JobState.QUEUED.value,
        )
    )  # fmt: skip
    return {row[0]: row[1] for row in session.execute(query.group_by(Trial.study_id))}


def running_count(session: Session, study_id: str) -> int:
    """The number of running trials; fast however many have ended."""
    return session.execute(_RUNNING, {"study_id": study_id}).scalar_one()


def ended_trials(session: Session, study_id: str, *, numbers: Sequence[int] | None = None) -> Sequence[UntypedRow]:
    """(number, state, parameters, memo, result, stop, reason, gpu_s) of ended trials, by number.

    ``numbers``: only these.
    """
    query = select(
        Trial.number, Trial.state, Trial.parameters, Trial.memo, Trial.result, Trial.stop, Trial.reason, Trial.gpu_s
    ).where(Trial.study_id == study_id, Trial.state != TrialState.RUNNING.value)
    if numbers is not None:
        query = query.where(Trial.number.in_(numbers))
    return session.execute(query.order_by(Trial.number)).all()


def jobs_of(session: Session, study_id: str, numbers: Sequence[int]) -> dict[int, str | None]:
    """The job of each of these trials."""
    query = select(Trial.number, Trial.job_id).where(Trial.study_id == study_id, Trial.number.in_(numbers))
    return {row.number: row.job_id for row in session.execute(query)}


def curves_of(
    session: Session, study_id: str, *, limit: int, numbers: Sequence[int] | None = None
) -> Sequence[UntypedRow]:
    """(number, state, curve) of the newest ended trials that have a curve. ``numbers``: only these."""
    query = select(Trial.number, Trial.state, Trial.curve).where(
        Trial.study_id == study_id, Trial.state.in_(_WITH_RESULT), Trial.curve.is_not(None)
    )
    if numbers is not None:
        query = query.where(Trial.number.in_(numbers))
    return session.execute(query.order_by(Trial.number.desc()).limit(limit)).all()


def gpu_seconds(session: Session, study_id: str) -> float:
    """GPU-seconds of the ended trials."""
    query = select(func.coalesce(func.sum(Trial.gpu_s), 0.0)).where(Trial.study_id == study_id)
    return float(session.execute(query).scalar_one())
