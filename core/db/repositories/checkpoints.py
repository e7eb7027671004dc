"""Pinned checkpoints, and checkpoints in use."""

from __future__ import annotations

from typing import Final

from sqlalchemy import and_, delete, or_, select
from sqlalchemy.orm import Session

from core.db.repositories.models import sources_in_use
from core.db.tables import Attempt, Checkpoint, Job, PinnedCheckpoint
from core.domain.jobs.retention import RetentionCandidate
from core.domain.jobs.states import JobState
from core.inspection.discovery import CheckpointFiles, find_checkpoints
from core.storage.tree import Tree
from core.storage.volumes import OUTPUT_MOUNT, RESUME_MOUNT

_OVER: Final = [state.value for state in JobState if state.is_terminal]


def pinned_paths(session: Session, job: Job) -> set[str]:
    """The pinned checkpoints in the job's output, whichever of the jobs that share the output they were pinned for."""
    query = (
        select(PinnedCheckpoint.path)
        .join(Job, Job.id == PinnedCheckpoint.job_id)
        .where(Job.output_volume == job.output_volume, Job.output_path == job.output_path)
    )
    return set(session.scalars(query))


def used_paths(session: Session, job: Job) -> set[str]:
    """The checkpoints in the job's output from which an unfinished job resumes or shall resume, or which are being
    registered as a model.
    """
    shares = and_(Job.output_volume == job.output_volume, Job.output_path == job.output_path)
    rows = session.execute(
        select(Job.cloned_from, shares.label("shares"), Job.resume_from, Job.resume_choice, Attempt.resume_from)
        .outerjoin(Attempt, and_(Attempt.job_id == Job.id, Attempt.ended_at.is_(None)))
        .where(Job.state.not_in(_OVER), Job.deleted_at.is_(None), or_(shares, Job.cloned_from == job.id))
    ).all()
    found = sources_in_use(session, job)
    for cloned_from, is_here, given, choice, used in rows:
        mounts = [OUTPUT_MOUNT] * bool(is_here) + [RESUME_MOUNT] * (cloned_from == job.id)
        for path in (given, used):
            found |= {path.removeprefix(f"{mount}/") for mount in mounts if path and path.startswith(f"{mount}/")}
        if choice and is_here:
            found.add(choice["path"])
    return found


def complete_of(session: Session, job: Job, tree: Tree) -> list[tuple[RetentionCandidate, CheckpointFiles]]:
    """The complete checkpoints in the output ``tree`` of ``job``, with what the job reported of each; unordered.

    Raises:
        TrainmasterError: the volume is away.
    """
    rows = session.execute(
        select(Checkpoint.path, Checkpoint.step, Checkpoint.metrics, Checkpoint.created_at).where(
            Checkpoint.job_id == job.id
        )
    )
    reported = {row.path: row for row in rows}
    found = []
    for landed in find_checkpoints(tree):
        row = reported.get(landed.path)
        # For a folder, the job's report says when it is complete; for a file, its end does.
        if landed.is_complete or (row is not None and landed.is_dir):
            step = landed.step if row is None or row.step is None else row.step
            metrics = {} if row is None else row.metrics
            found.append((RetentionCandidate(landed.path, step, landed.modified_at, metrics), landed))
    return found


def forget(session: Session, job: Job, path: str) -> None:
    """Drop the reports of this checkpoint by all jobs of the output."""
    same = select(Job.id).where(Job.output_volume == job.output_volume, Job.output_path == job.output_path)
    session.execute(delete(Checkpoint).where(Checkpoint.job_id.in_(same), Checkpoint.path == path))
