"""Checkpoints: what jobs told of and what lies in their output, as one list."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import select
from sqlalchemy.orm import Session
from trainmaster.wire.jobs import CheckpointView

from api.auth import JobAccess
from api.work import Platform
from core.db.tables import Attempt, Checkpoint
from core.domain.errors import Conflict, TrainmasterError
from core.storage.checkpoints import FoundCheckpoint, all_complete
from core.storage.outputs import job_output
from core.storage.tree import Tree


def list_checkpoints(platform: Platform, access: JobAccess) -> list[CheckpointView]:
    """Complete checkpoints, newest first. One that was told of and is gone from the output is left out."""
    with platform.read() as work:
        job = access.load(work.session)
        told = {view.path: view for view in _told(work.session, job.id)}
        try:
            tree: Tree | None = job_output(work.session, job)
        except Conflict:
            tree = None  # the control plane does not see the volume: what was told is all we know
    if tree is None:
        return sorted(told.values(), key=_newest, reverse=True)
    found = {item.path: item for item in all_complete(tree)}
    views = [view for path, view in told.items() if path in found or _exists(tree, path)]
    views += [_view_of(item) for path, item in found.items() if path not in told]
    return sorted(views, key=_newest, reverse=True)


def _told(session: Session, job_id: str) -> Iterator[CheckpointView]:
    query = (
        select(Checkpoint, Attempt.number)
        .join(Attempt, Attempt.id == Checkpoint.attempt_id)
        .where(Checkpoint.job_id == job_id)
    )
    for row, number in session.execute(query):
        yield CheckpointView(
            path=row.path,
            step=row.step,
            metrics=row.metrics,
            size_bytes=row.size_bytes,
            attempt_number=number,
            created_at=row.created_at,
        )


def _view_of(found: FoundCheckpoint) -> CheckpointView:
    size = None if found.is_dir else found.size_bytes
    return CheckpointView(path=found.path, step=found.step, size_bytes=size, created_at=found.modified_at)


def _exists(tree: Tree, path: str) -> bool:
    try:
        return tree.exists(path)
    except TrainmasterError:
        return False


def _newest(view: CheckpointView) -> tuple[bool, int, float, str]:
    return (view.step is not None, view.step or 0, view.created_at.timestamp(), view.path)
