"""Whether of two versions, both the best of a study, the older one has the better result."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy.orm import Session
from trainmaster.studies import Goal, StudySpec

from core.db.tables import Job, ModelVersion, Study, Trial
from core.domain.studies.results import values_of


class _Found(NamedTuple):
    study: str
    metric: str
    goal: Goal
    value: float


def why_better(session: Session, there: ModelVersion, new: ModelVersion) -> str:
    """Why ``there`` is better than ``new``, without a full stop; empty where it is not, or they cannot be compared.

    They can where both come from trials of studies with the same metric and goal; what counts is the trials' results.
    """
    old, own = _result_of(session, there), _result_of(session, new)
    if old is None or own is None or (old.metric, old.goal) != (own.metric, own.goal):
        return ""
    is_better = old.value < own.value if own.goal is Goal.MINIMIZE else old.value > own.value
    if not is_better:
        return ""
    return (
        f"its {old.metric} of {old.value:.6g} (study {old.study}) is better than {own.value:.6g} of study {own.study}"
    )


def _result_of(session: Session, version: ModelVersion) -> _Found | None:
    """Of the trial whose job, or whose point run once more, the version is of."""
    job = None if version.job_id is None else session.get(Job, version.job_id)
    about = None if job is None else job.trial
    study = None if not about else session.get(Study, about["study_id"])
    trial = None if not about else session.get(Trial, (about["study_id"], about["number"]))
    if study is None or trial is None:
        return None
    spec = StudySpec.model_validate(study.spec)
    first = spec.metrics[0]
    values = values_of(trial.result, [first.name])
    return None if values is None else _Found(study.name, first.name, first.goal, values[0])
