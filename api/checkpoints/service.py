"""One list of the checkpoints that jobs reported and those found in their output; and one to resume from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from sqlalchemy import select
from sqlalchemy.orm import Session
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import CheckpointView

from api.app.unit_of_work import AppContext
from api.auth import JobAccess
from api.http.paging import PageQuery, cut, make_cursor, read_cursor
from core.db.repositories.checkpoints import pinned_paths, used_paths
from core.db.repositories.metrics.reads import SeriesFilter, find_names
from core.db.repositories.metrics.steps import values_at
from core.db.tables import Attempt, Checkpoint, Job, Replica
from core.domain.errors import Conflict, TrainmasterError
from core.domain.metrics import SYSTEM
from core.inspection.discovery import CheckpointFiles, checkpoint_at, find_checkpoints
from core.storage.tree import Tree
from core.storage.volumes import job_output

# Newest first, as values that a cursor can contain: whether it has a step, the step, the time in microseconds, and the
# digest of the path, since the path may be too long.
SortKey: TypeAlias = tuple[int, int, int, str]
# Limits of the metrics shown for checkpoints that were reported without any: reading them takes half a second at most.
_METRIC_LIMIT: Final = 24  # names
_REPLICA_LIMIT: Final = 2  # of each role
_CHUNK_LIMIT: Final = 600
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def list_page(
    context: AppContext, access: JobAccess, page: PageQuery, *, incomplete: bool = False
) -> Page[CheckpointView]:
    """Checkpoints, newest first. A reported checkpoint that is gone from the output is left out.

    ``incomplete``: include those that are being written, or whose writer did not finish.
    """
    with context.read() as work:
        job = access.load(work.session)
        reported = {view.path: view for view in _reported(work.session, job.id)}
        attempts = _attempt_writes(work.session, job.id)
        pinned, used = pinned_paths(work.session, job), used_paths(work.session, job)
        try:
            tree: Tree | None = job_output(work.session, job)
        except Conflict:
            tree = None  # the control plane cannot read the volume: only the reports are known
    views = list(reported.values()) if tree is None else _merge_with_output(tree, reported, attempts)
    ordered = sorted(
        ((_sort_key(view), view) for view in views if incomplete or view.is_complete), key=_first, reverse=True
    )
    if page.cursor is not None:
        last = tuple(read_cursor(page.cursor, (int, int, int, str)))
        ordered = [item for item in ordered if item[0] < last]
    items, has_more = cut(ordered, page.limit)
    with context.read() as work:
        without = [view.step for _, view in items if view.step is not None and not view.metrics]
        only = SeriesFilter(kind="scalar", without_prefix=SYSTEM)
        names = [row.name for row in find_names(work.session, job.id, only, limit=_METRIC_LIMIT)] if without else []
        at_steps = values_at(
            work.session,
            job.id,
            without,
            names,
            replicas=_REPLICA_LIMIT,
            chunks=_CHUNK_LIMIT,
        )
    marked = [
        view.model_copy(
            update={
                "is_pinned": view.path in pinned,
                "is_in_use": view.path in used,
                "metrics": view.metrics or ({} if view.step is None else at_steps.get(view.step, {})),
            }
        )
        for _, view in items
    ]
    return Page(items=marked, next_cursor=make_cursor(*items[-1][0]) if has_more else None)


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


def _merge_with_output(
    tree: Tree, reported: Mapping[str, CheckpointView], attempts: Sequence[_AttemptWrites]
) -> list[CheckpointView]:
    """Reported checkpoints that exist, and unreported ones of the output."""
    found = {item.path: item for item in find_checkpoints(tree)}
    views = [
        _with_found_files(view, found[path]) if path in found else view
        for path, view in reported.items()
        if path in found or _exists(tree, path)
    ]
    return views + [_view_of(item, attempts) for path, item in found.items() if path not in reported]


def _with_found_files(reported: CheckpointView, found: CheckpointFiles) -> CheckpointView:
    """The job's report, completed by what was found in the output."""
    return reported.model_copy(
        update={
            "size_bytes": found.size_bytes if reported.size_bytes is None else reported.size_bytes,
            "step": found.step if reported.step is None else reported.step,
            "format": found.format,
            "is_dir": found.is_dir,
            # The job decides when a folder is complete; a file is complete if its end can be parsed.
            "is_complete": found.is_dir or found.is_complete,
            "problem": "" if found.is_dir else found.problem,
        }
    )


def _reported(session: Session, job_id: str) -> Iterator[CheckpointView]:
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


@dataclass(frozen=True, slots=True)
class _AttemptWrites:
    """An attempt: when it could write, and the last progress of its replicas."""

    number: int
    began: datetime
    ended: datetime | None
    progress: Sequence[Mapping[str, Any]]

    def wrote(self, at: datetime) -> bool:
        return self.began <= at and (self.ended is None or at <= self.ended)

    def metrics_at(self, step: int | None) -> dict[str, Any]:
        """The metrics reported for this step, if it is the last one of a replica: earlier ones are not stored here."""
        reported = (progress for progress in self.progress if step is not None and progress.get("step") == step)
        return next((dict(progress["metrics"]) for progress in reported if progress.get("metrics")), {})


def _attempt_writes(session: Session, job_id: str) -> list[_AttemptWrites]:
    reported: dict[str, list[Mapping[str, Any]]] = {}
    query = (
        select(Replica.attempt_id, Replica.progress)
        .join(Attempt, Attempt.id == Replica.attempt_id)
        .where(Attempt.job_id == job_id)
        .order_by(Replica.role, Replica.index)
    )
    for attempt_id, progress in session.execute(query):
        if progress:
            reported.setdefault(attempt_id, []).append(progress)
    attempts = select(Attempt.id, Attempt.number, Attempt.created_at, Attempt.ended_at).where(Attempt.job_id == job_id)
    return [
        _AttemptWrites(number, began, ended, reported.get(id_, ()))
        for id_, number, began, ended in session.execute(attempts)
    ]


def _view_of(found: CheckpointFiles, attempts: Sequence[_AttemptWrites]) -> CheckpointView:
    """An unreported checkpoint: the attempt that ran when it was modified is taken for its writer."""
    by = next((attempt for attempt in attempts if attempt.wrote(found.modified_at)), None)
    return CheckpointView(
        path=found.path,
        step=found.step,
        metrics={} if by is None else by.metrics_at(found.step),
        size_bytes=found.size_bytes,
        attempt_number=None if by is None else by.number,
        created_at=found.modified_at,
        format=found.format,
        is_dir=found.is_dir,
        is_complete=found.is_complete,
        problem=found.problem,
    )


def _exists(tree: Tree, path: str) -> bool:
    try:
        return tree.exists(path)
    except TrainmasterError:
        return False


def _sort_key(view: CheckpointView) -> SortKey:
    micros = (view.created_at - _EPOCH) // timedelta(microseconds=1)
    digest = hashlib.blake2b(view.path.encode(errors="surrogatepass"), digest_size=12).hexdigest()
    return (int(view.step is not None), view.step or 0, micros, digest)


def _first(item: tuple[SortKey, CheckpointView]) -> SortKey:
    return item[0]
