"""Quarantines and suspicions of nodes as the caller may see them: jobs of other projects are not named."""

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
    """The ids of jobs in the causes of quarantines and suspicions that are hidden from ``caller``."""
    if caller.is_admin:
        return frozenset()
    jobs = {
        cause.job_id
        for node in nodes
        for stored in (node.quarantine, node.suspicion)
        for cause in _causes(node, stored)
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
    """Lift the quarantine and forget the failures: the next quarantine counts as the first in a row.

    ``now`` may be before a quarantine that was set while this waited for the lock; its causes are forgotten, too.
    """
    now = now if node.quarantined_at is None else max(now, node.quarantined_at)
    node.quarantine = node.quarantined_at = node.quarantined_until = node.suspicion = None
    node.trusted_since, node.quarantine_count = now, 0


def _causes(node: Node, stored: Mapping[str, Any] | None) -> list[NodeFailureFact]:
    return [NodeFailureFact.from_json(node.name, cause) for cause in (stored or {}).get("causes", ())]


def _jobs(causes: Iterable[NodeFailureFact], hidden: frozenset[str]) -> list[QuarantineJob]:
    return [
        QuarantineJob(at=cause.at, error=cause.error)
        if cause.job_id in hidden
        else QuarantineJob(job_id=cause.job_id, job=cause.job, at=cause.at, error=cause.error)
        for cause in causes
    ]
