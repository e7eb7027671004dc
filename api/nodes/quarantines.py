"""Why nodes take no new work by themselves, in the words for each caller: jobs of others are not named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select
from trainmaster.wire.admin import QuarantineJob, QuarantineView, SuspicionView

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller
from core.db.tables import Job, Node
from core.domain.sharing.quarantine import NodeFailureFact, describe_causes


def hidden_jobs(work: UnitOfWork, caller: Caller, nodes: Iterable[Node]) -> frozenset[str]:
    """Of the jobs that are to blame nodes, those whose names are not for ``caller``."""
    if caller.is_admin:
        return frozenset()
    jobs = {
        cause.job_id for node in nodes for kept in (node.quarantine, node.suspicion) for cause in _causes(node, kept)
    }
    if not jobs:
        return frozenset()
    rows = work.session.execute(select(Job.id, Job.project_id).where(Job.id.in_(sorted(jobs))))
    return frozenset(jobs) - {row.id for row in rows if row.project_id in caller.projects}


def view(node: Node, hidden: frozenset[str]) -> QuarantineView | None:
    if node.quarantined_at is None:
        return None
    causes = _causes(node, node.quarantine)
    return QuarantineView(
        since=node.quarantined_at,
        until=node.quarantined_until,
        why=describe_causes(causes, hidden) if causes else "",
        jobs=_jobs(causes, hidden),
        count=node.quarantine_count,
    )


def suspicion(node: Node, hidden: frozenset[str]) -> SuspicionView | None:
    if node.suspicion is None:
        return None
    causes = _causes(node, node.suspicion)
    return SuspicionView(
        why=describe_causes(causes, hidden), why_not=node.suspicion["why_not"], jobs=_jobs(causes, hidden)
    )


def lift(node: Node, now: datetime) -> None:
    """It is as one that never failed: the next quarantine is the first in a row. ``now`` may be before a quarantine that this had
    to wait for: what that was for counts no more either.
    """
    now = now if node.quarantined_at is None else max(now, node.quarantined_at)
    node.quarantine = node.quarantined_at = node.quarantined_until = node.suspicion = None
    node.trusted_since, node.quarantine_count = now, 0


def _causes(node: Node, kept: Mapping[str, Any] | None) -> list[NodeFailureFact]:
    return [NodeFailureFact.from_json(node.name, one) for one in (kept or {}).get("causes", ())]


def _jobs(causes: Iterable[NodeFailureFact], hidden: frozenset[str]) -> list[QuarantineJob]:
    return [
        QuarantineJob(at=one.at, error=one.error)
        if one.job_id in hidden
        else QuarantineJob(job_id=one.job_id, job=one.job, at=one.at, error=one.error)
        for one in causes
    ]
