"""Allocations of replicas as the database has them: what they held on which node, from when to when.

A replica holds its resources from the placing of its attempt, or later if it joined an elastic gang, until it has
succeeded or nothing of its attempt is left: see :func:`core.db.repositories.nodes.is_holding`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from sqlalchemy import and_, func, null, or_, select
from sqlalchemy.orm import Session

from core.db.repositories.nodes import labels_of
from core.db.tables import Attempt, Checkpoint, Job, MetricStream, Node, PriceRow, ReleasedAllocation, Replica
from core.domain.jobs.exits import ExitKind
from core.domain.jobs.states import ReplicaState
from core.domain.sharing.costs import Allocation, Price, PriceList, Resource
from core.domain.sharing.gpus import WHOLE_GPU

_ROWS: Final = 2_000  # fetched at once
# Ends that lose no work, or whose user threw it away.
_LOSSLESS: Final = (ExitKind.SUCCESS.value, ExitKind.CANCELLED.value)


@dataclass(frozen=True, slots=True)
class AllocationOwner:
    """Whose an allocation is. ``study_id``: of a trial's job."""

    project_id: str
    user_id: str
    job_id: str
    job: str
    study_id: str | None


def read_allocations(
    session: Session, since: datetime, until: datetime, now: datetime, *, condition: Any = None
) -> Iterator[tuple[AllocationOwner, Allocation]]:
    """The allocations that overlap ``since`` to ``until``; those still held end at ``now``.

    Args:
        condition: on ``Job``, such as its project.
    """
    ends = _ends(session, since, until, condition)
    for row in _rows(session, _of_replicas(since, until, condition)):
        end = row.ended_at if row.state == ReplicaState.SUCCEEDED.value and row.ended_at else row.attempt_ended_at
        milli = row.gpu_milli or len(row.gpus) * WHOLE_GPU
        yield from _allocation(row, row.placed_at or row.attempt_created_at, end or now, milli, ends)
    for row in _rows(session, _of_released(since, until, condition)):
        yield from _allocation(row, row.start_at, row.end_at, row.gpu_milli, ends)


def _rows(session: Session, query: Any) -> Iterator[Any]:
    for rows in session.execute(query.execution_options(yield_per=_ROWS)).partitions():
        yield from rows


def _allocation(
    row: Any, start: datetime, end: datetime, gpu_milli: int, lost_from: Mapping[str, datetime]
) -> Iterator[tuple[AllocationOwner, Allocation]]:
    if end <= start:
        return
    owner = AllocationOwner(row.project_id, row.user_id, row.job_id, row.name, (row.trial or {}).get("study_id"))
    model = row.gpu_model if gpu_milli else None
    yield (
        owner,
        Allocation(
            start,
            end,
            row.node,
            model,
            gpu_milli,
            row.cpu_milli,
            row.memory_bytes,
            lost_from.get(row.attempt_id),
            row.gpu_samples or 0,
            row.idle_gpu_samples or 0,
        ),
    )


_OWNER: Final = (Job.project_id, Job.user_id, Job.id.label("job_id"), Job.name, Job.trial)
_RESOURCES: Final = ("node", "gpu_model", "gpu_milli", "cpu_milli", "memory_bytes", "attempt_id")


def _of_replicas(since: datetime, until: datetime, condition: Any) -> Any:
    query = (
        select(
            *_OWNER,
            *(getattr(Replica, name) for name in _RESOURCES),
            Replica.gpus,
            Replica.state,
            Replica.placed_at,
            Replica.ended_at,
            Attempt.created_at.label("attempt_created_at"),
            Attempt.ended_at.label("attempt_ended_at"),
            MetricStream.gpu_samples,
            MetricStream.idle_gpu_samples,
        )
        .join(Attempt, Attempt.id == Replica.attempt_id)
        .join(Job, Job.id == Replica.job_id)
        .outerjoin(
            MetricStream,
            and_(
                MetricStream.owner_id == Replica.job_id,
                MetricStream.attempt == Attempt.number,
                MetricStream.role == Replica.role,
                MetricStream.index == Replica.index,
            ),
        )
        .where(Replica.memory_bytes > 0, _overlaps(since, until))
    )
    return query if condition is None else query.where(condition)


def _overlaps(since: datetime, until: datetime) -> Any:
    return and_(Attempt.created_at < until, or_(Attempt.ended_at.is_(None), Attempt.ended_at > since))


def _of_released(since: datetime, until: datetime, condition: Any) -> Any:
    query = (
        select(
            *_OWNER,
            *(getattr(ReleasedAllocation, name) for name in _RESOURCES),
            ReleasedAllocation.start_at,
            ReleasedAllocation.end_at,
            # The samples of a replica that left are among those of the one that took its index.
            null().label("gpu_samples"),
            null().label("idle_gpu_samples"),
        )
        .join(Job, Job.id == ReleasedAllocation.job_id)
        .where(ReleasedAllocation.start_at < until, ReleasedAllocation.end_at > since)
    )
    return query if condition is None else query.where(condition)


def _ends(session: Session, since: datetime, until: datetime, condition: Any) -> dict[str, datetime]:
    """Attempts that ended and lost work: since when, which is their last checkpoint, or their start without one."""
    saved = func.max(Checkpoint.created_at)
    query = (
        select(Attempt.id, func.coalesce(saved, Attempt.created_at))
        .join(Job, Job.id == Attempt.job_id)
        .join(Checkpoint, Checkpoint.attempt_id == Attempt.id, isouter=True)
        .where(
            _overlaps(since, until),
            Attempt.ended_at.is_not(None),
            Attempt.end["kind"].as_string().not_in(_LOSSLESS),
        )
        .group_by(Attempt.id, Attempt.created_at)
    )
    if condition is not None:
        query = query.where(condition)
    return dict(session.execute(query).all())


def read_prices(session: Session) -> PriceList:
    """The prices, with the labels that nodes have now."""
    rows = session.scalars(select(PriceRow)).all()
    # Of thousands of nodes, read only where a price asks for labels.
    has_selector = any(row.node_selector for row in rows)
    labels = {node.name: labels_of(node) for node in session.scalars(select(Node))} if has_selector else {}
    return PriceList((price_of(row) for row in rows), labels)


def price_of(row: PriceRow) -> Price:
    selector = tuple(sorted((key, str(value)) for key, value in row.node_selector.items()))
    resource = cast("Resource", row.resource)
    return Price(resource, row.micros_per_hour, row.effective_from, row.gpu_model, selector)
