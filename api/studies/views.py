"""REST views of studies and trials, and a cache of trial results.

The result of an ended trial never changes, so each request reads only the new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, cast

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from trainmaster.studies import Goal, StudySpec
from trainmaster.wire.jobs import WaitReasonView
from trainmaster.wire.studies import StudyBest, StudyDetail, StudyView, StudyWinner, TrialView
from trainmaster.wire.studies import StudyState as WireState

from api.app.cache import LruCache
from api.jobs.schemas import wait_reason_of
from core.db.engine import UntypedRow
from core.db.repositories import studies
from core.db.repositories.jobs import view_row
from core.db.tables import Job, Model, ModelVersion, Project, Study, Trial, User
from core.domain.jobs.states import JobState
from core.domain.studies.budget import CHOSEN
from core.domain.studies.results import TrialResult, best, best_so_far, pareto, regret, values_of
from core.domain.studies.states import StudyState, TrialState

_NAMESAKES: Final = 10
# Studies in the cache; one of 10,000 trials takes two megabytes.
_STUDY_LIMIT: Final = 64
# Beyond this all trials are read: the number of parameters of a statement is limited.
_PARAMETER_LIMIT: Final = 500
_WITH_RESULT: Final = (TrialState.SUCCEEDED.value, TrialState.STOPPED.value)


def trial_views(
    session: Session, study_id: str, *, after: int = 0, limit: int, numbers: Sequence[int] = ()
) -> list[TrialView]:
    """Trials in order of number; with ``numbers``, only those."""
    query = (
        select(
            Trial.number,
            Trial.state,
            Trial.parameters,
            Trial.memo,
            Trial.result,
            Trial.reason,
            Trial.job_id,
            Trial.gpu_s,
            Trial.client,
            Trial.heartbeat_at,
            Trial.created_at,
            Trial.ended_at,
            Job.state.label("job_state"),
        )
        .outerjoin(Job, Job.id == Trial.job_id)
        .where(Trial.study_id == study_id, Trial.number > after)
    )
    if numbers:
        query = query.where(Trial.number.in_(numbers))
    return [_trial(row) for row in session.execute(query.order_by(Trial.number).limit(limit))]


def study_view(session: Session, study: Study) -> StudyView:
    return study_views(session, [study])[0]


def study_views(session: Session, rows: Sequence[Study]) -> list[StudyView]:
    counts = studies.trial_counts(session, [row.id for row in rows])
    waiting = studies.waiting_counts(session, [row.id for row in rows])
    projects = _names(session, Project, {row.project_id for row in rows})
    users = _names(session, User, {row.user_id for row in rows})
    return [_view(session, row, counts[row.id], waiting.get(row.id, 0), projects, users) for row in rows]


def study_detail(session: Session, study: Study, now: datetime) -> StudyDetail:
    view = study_view(session, study)
    spec = StudySpec.model_validate(study.spec)
    return StudyDetail(
        **dict(view),
        spec=spec,
        seed=study.seed,
        gpu_hours=studies.gpu_seconds(session, study.id) / 3600,
        best_so_far=best_so_far(results(session, study.id, spec), spec.metrics[0].goal),
        winner=winner_view(session, study),
        namesakes=_namesakes(session, study),
        wait_reason=_wait_reason(session, study.id, now) if view.waiting else None,
    )


def _wait_reason(session: Session, study_id: str, now: datetime) -> WaitReasonView | None:
    """The wait reason of the first running trial whose job is queued."""
    query = (
        select(Job.id)
        .join(Trial, Trial.job_id == Job.id)
        .where(
            Trial.study_id == study_id,
            Trial.state == TrialState.RUNNING.value,
            Job.state == JobState.QUEUED.value,
        )
    )
    job_id = session.scalars(query.order_by(Trial.number).limit(1)).first()
    return None if job_id is None else wait_reason_of(view_row(session, job_id), now)


def _namesakes(session: Session, study: Study) -> list[str]:
    query = select(Study.id).where(
        Study.project_id == study.project_id,
        Study.name == study.name,
        Study.id != study.id,
        Study.deleted_at.is_(None),
        Study.state.in_([state.value for state in StudyState if not state.is_terminal]),
    )
    return list(session.scalars(query.order_by(Study.created_at.desc(), Study.id.desc()).limit(_NAMESAKES)))


def winner_view(session: Session, study: Study) -> StudyWinner | None:
    best_trial = study.best_trial
    if best_trial is None:
        return None
    job = session.get(Job, best_trial["job"])
    version = session.get(ModelVersion, best_trial["version"])
    is_there = version is not None and version.deleted_at is None
    model = session.get(Model, version.model_id) if version is not None and is_there else None
    return StudyWinner(
        trial=best_trial["trial"],
        job=None if job is None or job.deleted_at is not None else job.id,
        job_state=None if job is None else job.state,
        model=None if model is None else model.name,
        version=version.number if version is not None and is_there else None,
        version_state=version.state if version is not None and is_there else None,
        reason=version.reason if version is not None and is_there else "",
    )


def study_best(session: Session, study: Study) -> StudyBest:
    spec = StudySpec.model_validate(study.spec)
    found = results(session, study.id, spec)
    front = _cached_front(study.id, found, spec.goals)
    if len(spec.metrics) == 1:
        front = front[:1]  # trials of equal value ended later
    numbers = [result.number for result in front]
    names = [metric.name for metric in spec.metrics]
    trials = trial_views(session, study.id, limit=len(numbers), numbers=numbers) if numbers else []
    history = best_so_far(found, spec.metrics[0].goal)
    return StudyBest(metrics=names, trials=trials, best_so_far=history, regret=regret(found, spec.metrics[0].goal))


def results(session: Session, study_id: str, spec: StudySpec) -> list[TrialResult]:
    """All results, in order of the trials' numbers."""
    return _cached_results(session, study_id, [metric.name for metric in spec.metrics])


def _view(
    session: Session,
    row: Study,
    counts: Mapping[TrialState, int],
    waiting: int,
    projects: Mapping[str, str],
    users: Mapping[str, str],
) -> StudyView:
    spec = StudySpec.model_validate(row.spec)
    found = results(session, row.id, spec)
    leader = best(found, spec.goals)
    chosen = row.spec.get(CHOSEN) or {}
    return StudyView(
        id=row.id,
        name=row.name,
        project=projects[row.project_id],
        user=users[row.user_id],
        state=cast("WireState", row.state),
        reason=row.reason,
        note=row.note,
        metrics=[metric.name for metric in spec.metrics],
        algorithm=spec.algorithm.value,
        algorithm_chosen=chosen.get("algorithm"),
        algorithm_reason=chosen.get("reason", ""),
        trials={state.value: count for state, count in counts.items()},
        waiting=waiting,
        budget_trials=spec.budget.trials,
        parallel=spec.budget.parallel,
        best=trial_views(session, row.id, limit=1, numbers=[leader.number])[0] if leader else None,
        front_size=len(_cached_front(row.id, found, spec.goals)) if len(spec.metrics) > 1 else None,
        cloned_from=row.cloned_from,
        created_at=row.created_at,
        finished_at=row.finished_at,
    )


def _trial(row: UntypedRow) -> TrialView:
    return TrialView(
        number=row.number,
        state=row.state,
        parameters=row.parameters,
        parent=row.memo.get("parent"),
        result=row.result,
        reason=row.reason,
        job=row.job_id,
        job_state=row.job_state,
        gpu_hours=row.gpu_s / 3600,
        client=row.client,
        heard_at=row.heartbeat_at,
        created_at=row.created_at,
        ended_at=row.ended_at,
    )


def _names(session: Session, table: type[Project | User], ids: set[str]) -> dict[str, str]:
    rows = session.execute(select(table.id, table.name).where(table.id.in_(ids)))
    return {str(row.id): str(row.name) for row in rows}


_results: Final = LruCache[str, Mapping[int, TrialResult | None]](_STUDY_LIMIT)
# Each study's Pareto front with its number of results: with thousands of trials it takes long to compute.
_fronts: Final = LruCache[str, tuple[int, list[TrialResult]]](_STUDY_LIMIT)


def _cached_front(study_id: str, results: Sequence[TrialResult], goals: Sequence[Goal]) -> list[TrialResult]:
    """The Pareto front of ``results``, which must be all results of the study, in order of number."""
    known = _fronts.get(study_id)
    if known is None or known[0] != len(results):
        known = (len(results), pareto(results, goals))
        _fronts.put(study_id, known)
    return list(known[1])


def _cached_results(session: Session, study_id: str, names: Sequence[str]) -> list[TrialResult]:
    """All results of a study, in order of number. ``names``: the study's metrics, which never change."""
    ended = (Trial.study_id == study_id, Trial.state.in_(_WITH_RESULT))
    count = session.execute(select(func.count()).where(*ended)).scalar_one()
    found = dict(_results.get(study_id) or {})
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
