"""Exports the traces of ended jobs: the spans that follow from rows. Requests, calls of the executor and what the
runtime reports are recorded where they happen.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from core import telemetry
from core.db.engine import unit_of_work
from core.db.leases import mark, marked_at
from core.db.tables import Attempt, Job, Replica
from core.domain.jobs.states import JobState
from core.telemetry import SpanPlace
from scheduler.control import fence
from scheduler.control.context import ControlContext

TRACES_LEASE: Final = "traces"
# Not a lease but a timestamp: jobs that finished until then are exported.
TRACES_DONE: Final = "traces.done"
# A transaction commits some time after the time that it writes.
_COMMITTED_AFTER: Final = timedelta(seconds=2)
_AT_ONCE: Final = 500


def export_traces(control: ControlContext) -> int:
    """Record the spans of the sampled jobs that ended since the last call; returns how many jobs these are."""
    if not telemetry.is_requested():
        return 0
    with fence.leased(control, TRACES_LEASE) as lease:
        if lease is None:
            return 0
        with unit_of_work(control.sessions) as session:
            until = control.clock() - _COMMITTED_AFTER
            since = marked_at(session, TRACES_DONE)
            query = select(Job).where(Job.finished_at > (since or until), Job.finished_at <= until)
            jobs = session.scalars(query.order_by(Job.finished_at).limit(_AT_ONCE)).all()
            if len(jobs) == _AT_ONCE:
                until = jobs[-1].finished_at or until
            sampled = [job for job in jobs if telemetry.is_sampled(job.id)]
            for job in sampled:
                _record_job(session, job)
            mark(session, TRACES_DONE, holder="traces", now=until)
        return len(sampled)


def _record_job(session: Session, job: Job) -> None:
    place, ended_at = SpanPlace(job.id), job.finished_at or job.updated_at
    error = "" if job.state == JobState.SUCCEEDED else str((job.exit or {}).get("sentence") or job.state)
    attributes = {"trainmaster.job.id": job.id, "trainmaster.job.name": job.name, "trainmaster.job.state": job.state}
    telemetry.record("job", job.created_at, ended_at, place=place, parent=None, error=error, attributes=attributes)
    waits_since = job.created_at
    attempts = session.scalars(select(Attempt).where(Attempt.job_id == job.id).order_by(Attempt.number)).all()
    replicas: dict[str, list[Replica]] = {}
    for replica in session.scalars(select(Replica).where(Replica.job_id == job.id).order_by(Replica.rank)):
        replicas.setdefault(replica.attempt_id, []).append(replica)
    for attempt in attempts:
        queue = SpanPlace(job.id, attempt.id, "queue")
        telemetry.record("queue", waits_since, attempt.created_at, place=queue, parent=place)
        waits_since = attempt.ended_at or ended_at
        _record_attempt(attempt, replicas.get(attempt.id, []), place, waits_since)
    if not attempts:
        telemetry.record("queue", waits_since, ended_at, place=SpanPlace(job.id, "", "queue"), parent=place)


def _record_attempt(attempt: Attempt, replicas: list[Replica], job: SpanPlace, ended_at: datetime) -> None:
    place = SpanPlace(job.job_id, attempt.id)
    attributes = {"trainmaster.attempt.id": attempt.id, "trainmaster.executor": attempt.executor}
    name = f"attempt {attempt.number}"
    telemetry.record(name, attempt.created_at, ended_at, place=place, parent=job, attributes=attributes)
    start = SpanPlace(job.job_id, attempt.id, "start")
    telemetry.record("start", attempt.created_at, attempt.started_at or ended_at, place=start, parent=place)
    for replica in replicas:
        label = f"{replica.role}-{replica.index}"
        telemetry.record(
            f"replica {label}",
            replica.placed_at or attempt.created_at,
            replica.ended_at or ended_at,
            place=SpanPlace(job.job_id, attempt.id, label),
            parent=place,
            error=replica.state if replica.state in ("failed", "lost") else "",
            attributes={"trainmaster.node": replica.node},
        )
