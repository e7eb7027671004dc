"""What users do with checkpoints: delete, pin, set a retention policy, and choose one to resume from."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import delete, select
from sqlalchemy.orm import Session
from trainmaster.wire.checkpoints import RetentionRequest, RetentionView

from api.app.unit_of_work import AppContext, UnitOfWork
from api.auth import Caller, JobAccess
from api.jobs.verbs import record_event
from core.db.repositories.checkpoints import forget, pinned_paths, used_paths
from core.db.tables import Checkpoint, Job, PinnedCheckpoint, Retention
from core.domain.errors import Conflict, InvalidRequest, TrainmasterError
from core.domain.jobs.retention import RetentionRule
from core.inspection.discovery import PINNED_MARKER, CheckpointFiles, checkpoint_at
from core.storage.outputs import job_output
from core.storage.tree import Tree


def find(session: Session, job: Job, path: str) -> tuple[Tree, CheckpointFiles]:
    """A checkpoint in the job's output. Raises ``NotFound``, or ``Conflict`` if the control plane cannot read the
    volume.
    """
    tree = job_output(session, job)
    return tree, checkpoint_at(tree, path)


def find_complete(session: Session, job: Job, path: str) -> str:
    """The path of a complete checkpoint that a job may resume from.

    Raises:
        NotFound: there is none.
        Conflict: it is not complete.
    """
    try:
        tree = job_output(session, job)
    except Conflict:
        reported = select(Checkpoint.path).where(Checkpoint.job_id == job.id, Checkpoint.path == path.strip("/"))
        if session.scalars(reported).first() is not None:
            return path.strip("/")  # the control plane cannot read the volume, so it trusts the job's report
        raise
    landed = checkpoint_at(tree, path)
    if not landed.is_complete:
        raise Conflict(
            f"{landed.path} is not complete: {landed.problem} Choose another checkpoint.", field="checkpoint"
        )
    return landed.path


def remove(context: AppContext, access: JobAccess, path: str) -> None:
    """Delete a checkpoint's files. Raises ``Conflict`` while it is pinned or in use."""
    with context.write() as work:
        job = access.load(work.session)
        tree, landed = find(work.session, job, path)
        if landed.path in pinned_paths(work.session, job):
            raise Conflict(f"{landed.path} is pinned; release it first, then delete it.", field="path")
        if landed.path in used_paths(work.session, job):
            raise Conflict(f"{landed.path} is in use: a job that has not ended resumes from it.", field="path")
        forget(work.session, job, landed.path)
        record_event(work, access.caller, job, "checkpoint.deleted", landed.path)
    # After the commit: a crash in between leaves files, never a row of a deleted checkpoint.
    for part in landed.parts:
        tree.delete(part)


def keep(context: AppContext, access: JobAccess, path: str) -> None:
    """Pin a checkpoint: neither retention nor a user deletes it."""
    with context.write() as work:
        job = access.load(work.session)
        tree, landed = find(work.session, job, path)
        if landed.path in pinned_paths(work.session, job):
            return
        row = PinnedCheckpoint(job_id=job.id, path=landed.path, user=access.caller.user, created_at=work.now)
        work.session.add(row)
        record_event(work, access.caller, job, "checkpoint.kept", landed.path)
    if landed.is_dir:
        with suppress(TrainmasterError), tree.new_file(f"{landed.path}/{PINNED_MARKER}"):
            pass  # on a volume that is read-only here, the training library does not learn of it


def release(context: AppContext, access: JobAccess, path: str) -> None:
    """Unpin a checkpoint. Harmless if it is not pinned, or is gone."""
    with context.write() as work:
        job = access.load(work.session)
        same_output = select(Job.id).where(Job.output_volume == job.output_volume, Job.output_path == job.output_path)
        hit = work.session.execute(
            delete(PinnedCheckpoint)
            .where(PinnedCheckpoint.job_id.in_(same_output), PinnedCheckpoint.path == path.strip("/"))
            .returning(PinnedCheckpoint.path)
        ).first()
        if hit is not None:
            record_event(work, access.caller, job, "checkpoint.released", path.strip("/"))
        with suppress(TrainmasterError):
            job_output(work.session, job).delete(f"{path.strip('/')}/{PINNED_MARKER}")


def get_retention(session: Session, job: Job) -> RetentionView:
    row = session.get(Retention, job.id)
    if row is None:
        return RetentionView()
    return RetentionView.model_validate({**row.rule, "user": row.user, "updated_at": row.updated_at})


def set_retention(work: UnitOfWork, caller: Caller, job: Job, wanted: RetentionRequest) -> RetentionView:
    """Raises ``InvalidRequest`` for an empty policy, or for ``best`` without a metric."""
    rule = RetentionRule(wanted.last, wanted.best, wanted.metric, wanted.mode, wanted.every)
    if rule.is_empty:
        raise InvalidRequest(
            "State at least one of last, best and every; DELETE the retention to keep all checkpoints.", field="last"
        )
    if (rule.best is None) != (rule.metric is None):
        raise InvalidRequest(
            "best and metric need each other: state the metric that ranks checkpoints.", field="metric"
        )
    row = work.session.get(Retention, job.id)
    if row is None:
        row = Retention(job_id=job.id)
        work.session.add(row)
    row.rule, row.user, row.updated_at = rule.to_json(), caller.user, work.now
    work.session.flush()
    summary = ", ".join(f"{key} {value}" for key, value in rule.to_json().items() if value is not None)
    record_event(work, caller, job, "retention.set", summary)
    return get_retention(work.session, job)


def clear_retention(work: UnitOfWork, caller: Caller, job: Job) -> None:
    hit = work.session.execute(delete(Retention).where(Retention.job_id == job.id).returning(Retention.job_id)).first()
    if hit is not None:
        record_event(work, caller, job, "retention.cleared", "")
