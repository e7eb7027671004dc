"""Why a trial has no result, in words: which roads of its metric were looked at, and what came on each of them.

A replica that comes to its end tells what each road brought; of one that could not, it is said where was looked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from trainmaster.studies import StudySpec

from core.db.repositories.metrics.reads import Filter, find_names
from core.db.tables import Attempt, Job, Replica
from core.domain.studies.metric_sources import KEY, Roads
from scheduler.control.studies.measure import MeasuredMetrics

_NAMES_SHOWN: Final = 8
_PATTERNS_SHOWN: Final = 3
_PATTERN_CHARS: Final = 80
_SYSTEM: Final = "system/"
_FILES: Final = "reports of the training library and MLflow, TensorBoard's event files in its output and working folder, hypertune's file"


def missing_metric_reason(
    session: Session, job_id: str, spec: StudySpec, result: Mapping[str, float | None], measured: MeasuredMetrics
) -> str:
    """Which metric is missing, where it was looked for, and what came instead."""
    missing = next((name for name, value in result.items() if value is None), spec.metrics[0].name)
    came = find_names(session, job_id, Filter(without_prefix=_SYSTEM, kind="scalar"), limit=_NAMES_SHOWN + 1)
    names = [row.name for row in came]
    if missing in names:
        return measured.fault(missing) or f"its last value of the metric {missing!r} is not a number"
    job = session.get(Job, job_id)
    patterns = [] if job is None else list(job.spec.get("metric_patterns") or ())
    roads = _roads_of(session, job_id)
    if roads.is_known:
        found = roads.words(names[:_NAMES_SHOWN], more=len(names) > _NAMES_SHOWN)
        return f"it never reported the metric {missing!r}. What came: {found}. Read were {_of_lines(missing, patterns)}"
    told = f"it never reported the metric {missing!r}"
    if names:
        told += f"; it reported {', '.join(names[:_NAMES_SHOWN])}{' and more' if len(names) > _NAMES_SHOWN else ''}"
    else:
        told += "; it reported no metric at all"
        if not find_names(session, job_id, Filter(prefix=_SYSTEM), limit=1):
            # Each replica's resources are sampled by who looks for its metrics, first after some seconds.
            told += ", nor how much of its node it used: it was over within seconds, or nobody could look inside it"
    return f"{told}. Looked for it in {_FILES}, and {_of_lines(missing, patterns)}"


def fully_reported(session: Session, job_ids: Collection[str]) -> set[str]:
    """Those of whose last attempt every replica told what its roads brought.

    It does so behind all its reports: none of them is on its way any more.
    """
    query = select(Attempt.job_id, Replica.progress).join(Job, Job.id == Attempt.job_id)
    query = query.join(Replica, Replica.attempt_id == Attempt.id)
    query = query.where(Attempt.job_id.in_(job_ids), Attempt.number == Job.attempt_count)
    told: dict[str, bool] = {}
    for job_id, progress in session.execute(query):
        told[job_id] = told.get(job_id, True) and KEY in (progress or {})
    return {job_id for job_id, is_whole in told.items() if is_whole}


def _roads_of(session: Session, job_id: str) -> Roads:
    """As the replicas of the last attempt told when they came to their end."""
    last = select(func.max(Attempt.number)).where(Attempt.job_id == job_id).scalar_subquery()
    query = select(Replica.progress).join(Attempt, Attempt.id == Replica.attempt_id)
    query = query.where(Attempt.job_id == job_id, Attempt.number == last)
    return Roads.of([progress or {} for progress in session.scalars(query.order_by(Replica.role, Replica.index))])


def _of_lines(missing: str, patterns: Sequence[str]) -> str:
    """How lines of the log were read: the job's own patterns stand in place of the usual words."""
    if not patterns:
        return (
            f"lines of the log that name a step or an epoch, like `{missing}=0.1 step=3`. For lines like `{missing}=0.1` alone "
            f'write `metric_patterns: ["{missing}={{{missing}}}"]` in the template'
        )
    shown = ", ".join(f"`{one[:_PATTERN_CHARS]}`" for one in patterns[:_PATTERNS_SHOWN])
    more = f" and {len(patterns) - _PATTERNS_SHOWN} more" if len(patterns) > _PATTERNS_SHOWN else ""
    absent = "" if any(f"{{{missing}}}" in one for one in patterns) else f", of which none has {{{missing}}}"
    return f"lines of the log that match metric_patterns: {shown}{more}{absent}"
