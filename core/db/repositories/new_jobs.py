"""From a spec to the rows of a queued job: the one factory for jobs of users and of studies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainmaster.spec import JobSpec

from core.db.repositories.jobs import ROLE_KEY
from core.db.repositories.submission import NewJob
from core.domain.jobs.states import DesiredState, JobState
from core.domain.sharing.resources import gang_of


@dataclass(frozen=True, slots=True)
class JobSubmission:
    """A job to be written. ``output_path``: ``None`` for a folder of its own. ``trial``: see ``Job.trial``."""

    id: str
    spec: JobSpec
    project_id: str
    project: str
    user_id: str
    output_volume: str
    output_path: str | None = None
    cloned_from: str | None = None
    resume_from: str | None = None
    trial: Mapping[str, Any] | None = None


def new_job(order: JobSubmission, *, now: datetime, actor: str, reason: str = "") -> NewJob:
    """The rows of a job that is queued at ``now``, for :func:`core.db.repositories.submission.write_job`."""
    spec, gang = order.spec, gang_of(order.spec)
    row = {
        "id": order.id,
        "project_id": order.project_id,
        "user_id": order.user_id,
        "name": spec.name,
        "spec": spec.model_dump(mode="json"),
        "gang": gang.to_json(),
        "shape": gang.shape(),
        "gpu_milli": gang.gpu_milli,
        "state": JobState.QUEUED.value,
        "desired_state": DesiredState.RUN.value,
        "priority": spec.priority,
        "max_run_time_s": spec.max_run_time,
        "output_volume": order.output_volume,
        "output_path": f"{order.project}/{order.id}" if order.output_path is None else order.output_path,
        "resume_from": order.resume_from,
        "cloned_from": order.cloned_from,
        "trial": None if order.trial is None else dict(order.trial),
        "created_at": now,
        "queued_at": now,
        "updated_at": now,
    }
    event = {
        "at": now,
        "kind": "job.queued",
        "actor": actor,
        "project_id": order.project_id,
        "job_id": order.id,
        "reason": reason,
    }
    labels = [*spec.labels.items(), *((ROLE_KEY, role) for role in spec.roles)]
    return NewJob(row, labels, event)
