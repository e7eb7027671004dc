"""Checkpoints: what jobs told of and what lies in their output, as one list."""

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
from api.http.cursors import make_cursor, read_cursor
from api.http.paging import PageQuery, cut
from core.db.repositories.checkpoints import kept_paths, used_paths
from core.db.repositories.metrics.reads import Filter, find_names
from core.db.repositories.metrics.steps import values_at
from core.db.tables import Attempt, Checkpoint, Replica
from core.domain.errors import Conflict, TrainmasterError
from core.domain.metrics.limits import SYSTEM
from core.inspection.discovery import Landed, all_landed
from core.storage.outputs import job_output
from core.storage.tree import Tree

# Newest first, as numbers and text that a cursor can hold: has a step, the step, the time in microseconds, and the
# digest of the path instead of the path, which may be long.
Order: TypeAlias = tuple[int, int, int, str]
# Metrics that are shown where none were told with a checkpoint: of so many names, of so many replicas of each role, and
# read from so many chunks, half a second's work.
_NAMES: Final = 24
_REPLICAS: Final = 2
_CHUNKS: Final = 600
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def list_page(
    context: AppContext, access: JobAccess, page: PageQuery, *, incomplete: bool = False
) -> Page[CheckpointView]:
    """Checkpoints, newest first. One that was told of and is gone from the output is left out.

    Args:
        incomplete: also those that are being written, or whose writer did not finish.
    """
    with context.read() as work:
        job = access.load(work.session)
        told = {view.path: view for view in _told(work.session, job.id)}
        launches = _launches(work.session, job.id)
        kept, used = kept_paths(work.session, job), used_paths(work.session, job)
        try:
            tree: Tree | None = job_output(work.session, job)
        except Conflict:
            tree = None  # the control plane does not see the volume: what was told is all we know
    views = list(told.values()) if tree is None else _seen(tree, told, launches)
    ordered = sorted(
        ((_order(view), view) for view in views if incomplete or view.is_complete), key=_first, reverse=True
    )
    if page.cursor is not None:
        last = tuple(read_cursor(page.cursor, (int, int, int, str)))
        ordered = [item for item in ordered if item[0] < last]
    items, has_more = cut(ordered, page.limit)
    with context.read() as work:
        without = [view.step for _, view in items if view.step is not None and not view.metrics]
        only = Filter(kind="scalar", without_prefix=SYSTEM)
        names = [row.name for row in find_names(work.session, job.id, only, limit=_NAMES)] if without else []
        at_steps = values_at(
            work.session,
            job.id,
            without,
            names,
            replicas=_REPLICAS,
            chunks=_CHUNKS,
        )
    marked = [
        view.model_copy(
            update={
                "is_kept": view.path in kept,
                "is_in_use": view.path in used,
                "metrics": view.metrics or ({} if view.step is None else at_steps.get(view.step, {})),
            }
        )
        for _, view in items
    ]
    return Page(items=marked, next_cursor=make_cursor(*items[-1][0]) if has_more else None)


def _seen(tree: Tree, told: Mapping[str, CheckpointView], launches: Sequence[_Launch]) -> list[CheckpointView]:
    """What was told of and is there, and what is there besides."""
    found = {item.path: item for item in all_landed(tree)}
    views = [
        _with_form(view, found[path]) if path in found else view
        for path, view in told.items()
        if path in found or _exists(tree, path)
    ]
    return views + [_view_of(item, launches) for path, item in found.items() if path not in told]


def _with_form(told: CheckpointView, found: Landed) -> CheckpointView:
    """What the job told of it, and what is seen of it now."""
    return told.model_copy(
        update={
            "size_bytes": found.size_bytes if told.size_bytes is None else told.size_bytes,
            "step": found.step if told.step is None else told.step,
            "format": found.format,
            "is_dir": found.is_dir,
            # Of a folder the job knows best when it is complete; of a file its end tells.
            "is_complete": found.is_dir or found.is_complete,
            "problem": "" if found.is_dir else found.problem,
        }
    )


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


@dataclass(frozen=True, slots=True)
class _Launch:
    """An attempt: when it could write, and what its replicas told last."""

    number: int
    began: datetime
    ended: datetime | None
    progress: Sequence[Mapping[str, Any]]

    def wrote(self, at: datetime) -> bool:
        return self.began <= at and (self.ended is None or at <= self.ended)

    def metrics_at(self, step: int | None) -> dict[str, Any]:
        """The metrics that were told of this step; only the last ones are kept."""
        told = (progress for progress in self.progress if step is not None and progress.get("step") == step)
        return next((dict(progress["metrics"]) for progress in told if progress.get("metrics")), {})


def _launches(session: Session, job_id: str) -> list[_Launch]:
    told: dict[str, list[Mapping[str, Any]]] = {}
    query = (
        select(Replica.attempt_id, Replica.progress)
        .join(Attempt, Attempt.id == Replica.attempt_id)
        .where(Attempt.job_id == job_id)
        .order_by(Replica.role, Replica.index)
    )
    for attempt_id, progress in session.execute(query):
        if progress:
            told.setdefault(attempt_id, []).append(progress)
    attempts = select(Attempt.id, Attempt.number, Attempt.created_at, Attempt.ended_at).where(Attempt.job_id == job_id)
    return [_Launch(number, began, ended, told.get(id_, ())) for id_, number, began, ended in session.execute(attempts)]


def _view_of(found: Landed, launches: Sequence[_Launch]) -> CheckpointView:
    """One that nobody told of: the attempt that ran when it was written wrote it."""
    by = next((launch for launch in launches if launch.wrote(found.modified_at)), None)
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


def _order(view: CheckpointView) -> Order:
    micros = (view.created_at - _EPOCH) // timedelta(microseconds=1)
    digest = hashlib.blake2b(view.path.encode(errors="surrogatepass"), digest_size=12).hexdigest()
    return (int(view.step is not None), view.step or 0, micros, digest)


def _first(item: tuple[Order, CheckpointView]) -> Order:
    return item[0]
