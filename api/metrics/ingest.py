"""Ingestion of metric batches that a replica's processes send themselves."""

from __future__ import annotations

from typing import Final

from sqlalchemy import bindparam, select
from trainmaster.wire.metrics import MetricsAnswer, MetricsBatch

from api.app.unit_of_work import UnitOfWork
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.tables import Attempt, Job, Replica
from core.domain.errors import AttemptEnded, InvalidRequest, NotFound
from core.domain.ids import AttemptId
from core.reports.points import columns_of, objects_of

BATCH_POINTS: Final = 200_000
_FAULT_LIMIT: Final = 20
# Built once: each batch runs this query.
_FIND_REPLICA: Final = (
    select(Attempt.job_id, Attempt.number, Attempt.ended_at, Job.deleted_at)
    .join(Replica, Replica.attempt_id == Attempt.id)
    .join(Job, Job.id == Attempt.job_id)
    .where(Attempt.id == bindparam("attempt"), Replica.role == bindparam("role"), Replica.index == bindparam("index"))
)


def ingest_batch(work: UnitOfWork, attempt_id: AttemptId, batch: MetricsBatch) -> MetricsAnswer:
    """Add a batch that a process of the attempt sent.

    Raises:
        NotFound: the attempt has no such replica.
        AttemptEnded: it has ended, or its job was deleted.
        InvalidRequest: the batch has too many points.
    """
    if sum(len(series.values) for series in batch.series) > BATCH_POINTS:
        raise InvalidRequest(
            f"A batch has at most {BATCH_POINTS:,} points; send more and smaller batches.", field="series"
        )
    replica_key = {"attempt": attempt_id, "role": batch.role, "index": batch.index}
    row = work.session.execute(_FIND_REPLICA, replica_key).one_or_none()
    if row is None:
        raise NotFound(f"There is no replica {batch.role[:40]}-{batch.index} in attempt {attempt_id}.")
    if row.ended_at is not None or row.deleted_at is not None:
        raise AttemptEnded("The attempt of this token has ended; its metrics are closed.")
    faults: list[str] = []
    added = add_metrics(
        work.session,
        StreamKey(row.job_id, row.number, batch.role, batch.index),
        columns_of(batch.series, work.now, faults),
        objects_of(batch.objects, work.now, faults),
        now=work.now,
        writer=batch.writer,
        batch=batch.batch,
    )
    return MetricsAnswer(
        points=added.points,
        objects=added.objects,
        is_repeated=added.is_repeated,
        faults=[*faults, *added.faults][:_FAULT_LIMIT],
    )
