"""What replicas report, and the code that they fetch: an attempt's token gives access to that attempt alone."""

from __future__ import annotations

import os
from typing import Any, Final

from fastapi import Response
from sqlalchemy import bindparam, select
from starlette.concurrency import run_in_threadpool
from trainmaster.wire.metrics import MetricsAnswer, MetricsBatch, Report, ReportAnswer

from api.app.unit_of_work import AppContext, AppContextDep
from api.archives import archive_store
from api.auth import AttemptCaller
from api.http.ranges import OpenFileResponse
from api.http.routing import new_router
from core.db.repositories.metrics import writes
from core.db.tables import Attempt, Job, Replica
from core.domain.errors import AttemptEnded, InvalidRequest, NotFound
from core.domain.ids import AttemptId
from core.reports import columns_of, ingest_report, objects_of

router = new_router("runtime", "/runtime")

_ARCHIVE: Final[dict[str, Any]] = {
    "description": "The archive (.tar.gz).",
    "content": {"application/gzip": {"schema": {"type": "string", "format": "binary"}}},
}
_BATCH_POINTS: Final = 200_000
_FAULT_LIMIT: Final = 20
# Built once: each batch runs this query.
_FIND_REPLICA: Final = (
    select(Attempt.job_id, Attempt.number, Attempt.ended_at, Job.deleted_at)
    .join(Replica, Replica.attempt_id == Attempt.id)
    .join(Job, Job.id == Attempt.job_id)
    .where(Attempt.id == bindparam("attempt"), Replica.role == bindparam("role"), Replica.index == bindparam("index"))
)


@router.post("/report", operation_id="report", summary="A replica's heartbeats, progress, checkpoints and events")
async def report(body: Report, attempt: AttemptCaller, context: AppContextDep) -> ReportAnswer:
    """With the attempt's token. Items with known numbers are dropped; items up to `acked` may be removed from the
    spool.
    """
    return await context.run_bounded(_ingest_report, body, attempt, context)


def _ingest_report(body: Report, attempt: AttemptId, context: AppContext) -> ReportAnswer:
    with context.write() as work:
        return ReportAnswer(acked=ingest_report(work.session, attempt, body, now=work.now))


@router.post("/metrics", operation_id="add_metrics", summary="Points of many series at once")
async def add_metrics(body: MetricsBatch, attempt: AttemptCaller, context: AppContextDep) -> MetricsAnswer:
    """With the attempt's token, from any process of the replica. Supports `Content-Encoding: gzip`.

    With `batch`, a repeated batch counts once. Invalid points are reported in `faults`; the others are stored.
    """
    return await context.run_bounded(_ingest_metrics, body, attempt, context)


def _ingest_metrics(batch: MetricsBatch, attempt: AttemptId, context: AppContext) -> MetricsAnswer:
    with context.write() as work:
        if sum(len(series.values) for series in batch.series) > _BATCH_POINTS:
            raise InvalidRequest(
                f"A batch has at most {_BATCH_POINTS:,} points; send more and smaller batches.", field="series"
            )
        replica_key = {"attempt": attempt, "role": batch.role, "index": batch.index}
        row = work.session.execute(_FIND_REPLICA, replica_key).one_or_none()
        if row is None:
            raise NotFound(f"There is no replica {batch.role[:40]}-{batch.index} in attempt {attempt}.")
        if row.ended_at is not None or row.deleted_at is not None:
            raise AttemptEnded("The attempt of this token has ended; its metrics are closed.")
        faults: list[str] = []
        added = writes.add_metrics(
            work.session,
            writes.StreamKey(row.job_id, row.number, batch.role, batch.index),
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


@router.get(
    "/code",
    operation_id="download_code",
    summary="The code archive of a replica's job, or a range of it",
    response_class=Response,
    responses={200: _ARCHIVE, 206: {**_ARCHIVE, "description": "The range."}},
)
async def download_code(attempt: AttemptCaller, context: AppContextDep) -> Response:
    """With the attempt's token, while the attempt is live. Supports `Range` and `If-Range`."""
    return OpenFileResponse(await run_in_threadpool(_open_code, context, attempt), media_type="application/gzip")


def _open_code(context: AppContext, attempt_id: AttemptId) -> int:
    """A file descriptor for reading the code archive of the attempt's job.

    Raises:
        NotFound: the job has no code, or its archive is gone.
        AttemptEnded: it has ended, or its job was deleted.
    """
    with context.read() as work:
        row = work.session.execute(
            select(Job.spec, Job.deleted_at, Attempt.ended_at)
            .join(Attempt, Attempt.job_id == Job.id)
            .where(Attempt.id == attempt_id)
        ).one_or_none()
    if row is None:
        raise NotFound(f"There is no attempt {attempt_id}.")
    if row.deleted_at is not None or row.ended_at is not None:
        raise AttemptEnded("The attempt of this token has ended; no more of its replicas start.")
    digest = row.spec.get("code")
    if digest is None:
        raise NotFound("The job was submitted without code.")
    try:
        return os.open(archive_store(context).path_of(digest), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound("The job's code archive is gone; submit the job again to upload it.") from None
