"""Mirrors experiment runs of a job's script to the job: an event at the start, and the metrics."""

from __future__ import annotations

from collections.abc import Mapping

from api.protocols.vertex.records.principals import RecordTransaction
from core.db.repositories.events import append_event
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.domain.metrics.points import Points


def record_run_started(tx: RecordTransaction, run: str) -> None:
    """Append an event to the job's history; nothing for runs that users create."""
    if tx.attempt is None:
        return
    append_event(
        tx.session,
        at=tx.work.now,
        kind="experiment.run_started",
        actor="script",
        project_id=tx.scope.project_id,
        job_id=tx.attempt.job_id,
        attempt_id=tx.attempt.attempt_id,
        reason=f"The script logs to the run {run} of Vertex AI's experiments.",
        data={"run": run, "location": tx.scope.location},
    )


def copy_metrics(tx: RecordTransaction, run: str, metrics: Mapping[str, Points]) -> None:
    """Add points to the series ``<run>/<metric>`` of the job's main replica: the token does not identify a replica.

    Points beyond a job's limits stay with the run alone.
    """
    if tx.attempt is None or not metrics:
        return
    role = next(iter(tx.attempt.roles))
    key = StreamKey(tx.attempt.job_id, tx.attempt.number, role, 0)
    add_metrics(tx.session, key, {f"{run}/{name}": points for name, points in metrics.items()}, now=tx.work.now)
