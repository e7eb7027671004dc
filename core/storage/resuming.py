"""A job that goes on from a checkpoint of another one: what it mounts, and which checkpoint that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.tables import Checkpoint, Job
from core.domain.errors import InvalidRequest, TrainmasterError
from core.storage.checkpoints import FoundCheckpoint, newest_complete
from core.storage.outputs import RESUME_MOUNT, job_output


def with_resume_mount(spec: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """``spec`` with the output of ``job`` mounted read-only at ``RESUME_MOUNT``."""
    mount = {"volume": job.output_volume, "path": job.output_path, "at": RESUME_MOUNT, "read_only": True}
    others = [other for other in spec.get("mounts") or () if other.get("at") != RESUME_MOUNT]
    return {**spec, "mounts": [*others, mount]}


def resume_path(session: Session, job: Job) -> str:
    """The newest checkpoint of ``job``, told or found in its output, as the containers of its clone see it.

    Raises:
        InvalidRequest: there is none.
    """
    query = select(Checkpoint.path, Checkpoint.step).where(Checkpoint.job_id == job.id)
    told = session.execute(
        query.order_by(Checkpoint.step.desc().nulls_last(), Checkpoint.created_at.desc()).limit(1)
    ).one_or_none()
    found = _in_the_output(session, job)
    if found is not None and (told is None or (found.step or 0) > (told.step or 0)):
        return f"{RESUME_MOUNT}/{found.path}"
    if told is None:
        raise InvalidRequest(
            f"Job {job.name!r} has no complete checkpoint to resume from; clone it without `resume`.", field="resume"
        )
    return f"{RESUME_MOUNT}/{told.path}"


def _in_the_output(session: Session, job: Job) -> FoundCheckpoint | None:
    try:
        return newest_complete(job_output(session, job))
    except (TrainmasterError, OSError):
        return None  # not ours to see, or away at this moment: what the job told of is left
