"""Deleting checkpoints by their jobs' retention rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

import structlog
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.db.engine import unit_of_work
from core.db.repositories.checkpoints import complete_of, forget, pinned_paths, used_paths
from core.db.repositories.metrics.steps import values_at
from core.db.tables import Job, Retention
from core.domain.errors import TrainmasterError
from core.domain.jobs.retention import RetentionCandidate, RetentionRule, checkpoints_to_delete
from core.domain.jobs.states import JobState
from core.inspection.discovery import CheckpointFiles
from core.storage.tree import Tree
from core.storage.volumes import job_output
from scheduler.control.context import ControlContext
from scheduler.control.journal import Journal

log = structlog.get_logger(__name__)

_TERMINAL: Final = tuple(state.value for state in JobState if state.is_terminal)
# An ended job writes no more: its rule is applied for so long after its end, or after the rule was set.
_APPLY_AFTER_END: Final = timedelta(days=1)
# Of one job at once: the next run is minutes away, and other jobs wait.
_MAX_DELETED: Final = 100


def apply_retention(control: ControlContext) -> int:
    """Delete the checkpoints that the rules give up; returns how many.

    The newest checkpoint, pinned ones and those in use stay, whatever a rule says.
    """
    recent = control.clock() - _APPLY_AFTER_END
    query = (
        select(Retention.job_id)
        .join(Job, Job.id == Retention.job_id)
        .where(
            Job.deleted_at.is_(None),
            or_(Job.state.not_in(_TERMINAL), Job.finished_at > recent, Retention.updated_at > recent),
        )
        .order_by(Retention.job_id)
    )
    with unit_of_work(control.sessions, read_only=True) as session:
        job_ids = session.scalars(query).all()
    deleted = 0
    for job_id in job_ids:
        try:
            deleted += _apply(control, job_id)
        except (TrainmasterError, OSError) as error:
            log.warning("retention.failed", job=job_id, why=str(error))
    return deleted


def _apply(control: ControlContext, job_id: str) -> int:
    with unit_of_work(control.sessions, read_only=True) as session:
        job, retention = session.get(Job, job_id), session.get(Retention, job_id)
        if job is None or retention is None:
            return 0
        rule = RetentionRule.from_json(retention.rule)
        tree = job_output(session, job)
        found = complete_of(session, job, tree)
        candidates = _valued(session, job, rule, [candidate for candidate, _ in found])
        protected = pinned_paths(session, job) | used_paths(session, job)
    parts = {candidate.path: landed for candidate, landed in found}
    expired = checkpoints_to_delete(rule, candidates, protected)
    deleted = 0
    for candidate in expired[:_MAX_DELETED]:
        deleted += _delete(control, job_id, tree, parts[candidate.path])
    return deleted


def _valued(
    session: Session, job: Job, rule: RetentionRule, found: Sequence[RetentionCandidate]
) -> list[RetentionCandidate]:
    """With the rule's metric as the job's processes reported it at the checkpoints' steps, where it came separately."""
    metric = rule.metric
    if metric is None:
        return list(found)
    steps = [candidate.step for candidate in found if candidate.step is not None and metric not in candidate.metrics]
    values = values_at(session, job.id, steps, [metric])
    return [
        candidate
        if candidate.step is None or metric in candidate.metrics
        else replace(candidate, metrics=values[candidate.step])
        for candidate in found
    ]


def _delete(control: ControlContext, job_id: str, tree: Tree, landed: CheckpointFiles) -> bool:
    """Whether it was deleted: since the rule was applied, a user may have pinned it, or a job gone on from it."""
    with unit_of_work(control.sessions) as session:
        job = session.get(Job, job_id)
        if job is None or landed.path in pinned_paths(session, job) | used_paths(session, job):
            return False
        forget(session, job, landed.path)
        Journal(session, job.project_id, job.id).add(
            "checkpoint.deleted", f"{landed.path}, by the job's retention", at=control.clock()
        )
    for part in landed.parts:
        tree.delete(part)
    return True
