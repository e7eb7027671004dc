"""Quarantining nodes: decided from rows alone, at the beginning of each tick, before anything is placed.

Nothing is kept in memory. A kill between the end of a replica and the quarantine of its node leaves both facts to the
next tick, and two processes that decide at once compare what they have read: the second finds nothing left to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.orm import Session

from core.db.repositories import planning
from core.db.repositories.events import append_event
from core.db.repositories.nodes import labels_of
from core.db.tables import Job, Node, NodeFailure, PolicyRow, Replica
from core.domain.jobs.states import ReplicaState
from core.domain.sharing.policy import LONGEST_WINDOW_S, Policy
from core.domain.sharing.quarantine import (
    NodeCandidate,
    NodeFailureFact,
    Quarantine,
    QuarantineChanges,
    Suspicion,
    decide_quarantines,
    describe_causes,
    until_text,
)
from scheduler.control.journal import SCHEDULER

log = structlog.get_logger(__name__)

# Longer than any window: older failures never count.
_KEEP: Final = timedelta(seconds=LONGEST_WINDOW_S) + timedelta(days=1)
# How often a suspected node is judged again.
_AGAIN: Final = timedelta(seconds=5)
# How often everything is judged again while there are failures or quarantines, whether anything seems new or not.
_AT_LEAST: Final = timedelta(minutes=1)
_MARKED: Final = or_(Node.quarantined_at.is_not(None), Node.suspicion.is_not(None))
_MARKS: Final = (
    select(Node.name, Node.quarantined_at, Node.trusted_since, Node.suspicion.is_not(None).label("is_suspected"))
    .where(_MARKED)
    .order_by(Node.name)
)


class QuarantineSchedule:
    """Knows when there is something to decide, so that a tick need not read all nodes. A new process decides once."""

    def __init__(self) -> None:
        self._fingerprint: tuple[Any, ...] | None = None
        self._at: datetime | None = None
        self._next: datetime | None = None
        self._pending: tuple[tuple[Any, ...], datetime, datetime | None] | None = None

    def is_due(self, session: Session, now: datetime) -> bool:
        """Whether a failure, the policy or a quarantine is new, or time has changed something.

        It stays due until :meth:`note_done`: what was not committed has not been decided.
        """
        failures = failures_fingerprint(session)
        marks = session.execute(_MARKS).all()
        if not failures[0] and not marks:
            return False
        policy = session.execute(select(func.max(PolicyRow.generation))).scalar_one()
        fingerprint = (failures, policy, tuple(map(tuple, marks)))
        is_over = self._next is not None and now >= self._next
        # A suspicion also depends on other nodes; and no fact may be overlooked for good.
        patience = _AGAIN if any(row.is_suspected for row in marks) else _AT_LEAST
        is_late = self._at is None or now - self._at >= patience
        if fingerprint == self._fingerprint and not is_over and not is_late:
            return False
        self._pending = fingerprint, now, next_change(session, now)
        return True

    def note_done(self) -> None:
        """The due decision is committed."""
        if self._pending is not None:
            self._fingerprint, self._at, self._next = self._pending


def failures_fingerprint(session: Session) -> tuple[int, int | None, datetime | None]:
    """Changes whenever failures were written or removed: a tick must judge then. First their number.

    The newest id alone does not suffice: a lower one may be committed later, and SQLite reuses ids.
    """
    count, newest, at = session.execute(select(func.count(), func.max(NodeFailure.id), func.max(NodeFailure.at))).one()
    return count, newest, at


def next_change(session: Session, now: datetime) -> datetime | None:
    """When the next quarantine or suspicion ends."""
    rows = session.execute(select(Node.quarantined_until, Node.suspicion).where(_MARKED))
    times = []
    for until, suspicion in rows:
        times += [until] if until is not None else []
        times += [datetime.fromisoformat(suspicion["until"])] if suspicion else []
    return min((at for at in times if at > now), default=None)


def update_quarantines(session: Session, now: datetime) -> list[str]:
    """Quarantine and release nodes, in the caller's transaction; returns those that have changed."""
    nodes = session.scalars(select(Node).order_by(Node.name)).all()
    policy = planning.read_policy(session).policy
    candidates = [_candidate(node) for node in nodes]
    failures = _failures(session, candidates, policy, now)
    successes = _successes(session, {failure.node for failure in failures})
    changes = decide_quarantines(candidates, failures, successes, policy, now)
    by_name = {node.name: node for node in nodes}
    changed = [name for name, made in changes.quarantines.items() if _quarantine(session, by_name[name], made, now)]
    for name, why in changes.releases.items():
        if _release(session, by_name[name], why, changes, now):
            changed.append(name)
    changed += _suspicions(session, nodes, changes, now)
    return changed


def delete_old_failures(session: Session, now: datetime) -> int:
    """Delete failures that are too old to count; returns how many."""
    found = session.execute(delete(NodeFailure).where(NodeFailure.at < now - _KEEP))
    return int(found.rowcount)  # type: ignore[attr-defined]


# Reading


def _candidate(node: Node) -> NodeCandidate:
    labels = labels_of(node)
    models = tuple(sorted(model for model, count in (node.allocatable.get("gpus") or {}).items() if count))
    suspicion = node.suspicion or {}
    is_released_for_capacity = bool(suspicion.get("is_let_out"))
    causes = (suspicion if is_released_for_capacity else node.quarantine or {}).get("causes", ())
    return NodeCandidate(
        name=node.name,
        kind=(labels.get("pool", ""), models),
        takes_work=node.is_ready and not node.is_cordoned and not node.condition,
        is_quarantined=node.quarantined_at is not None,
        is_released_for_capacity=is_released_for_capacity,
        causes=tuple(NodeFailureFact.from_json(node.name, cause) for cause in causes),
        until=datetime.fromisoformat(suspicion["until"]) if is_released_for_capacity else node.quarantined_until,
        trusted_since=node.trusted_since,
        count=node.quarantine_count,
    )


def _failures(session: Session, nodes: Iterable[NodeCandidate], policy: Policy, now: datetime) -> list[NodeFailureFact]:
    jobs = sorted({cause.job_id for node in nodes for cause in node.causes})
    since = now - timedelta(seconds=policy.quarantine_window_s)
    rows = session.execute(
        select(NodeFailure, Job.name)
        .join(Job, Job.id == NodeFailure.job_id)
        .where(or_(NodeFailure.at > since, NodeFailure.job_id.in_(jobs)))
        .order_by(NodeFailure.id)
    )
    return [
        NodeFailureFact(row.node, row.job_id, job, row.at, row.error, row.is_certain, row.is_loss) for row, job in rows
    ]


def _successes(session: Session, names: Iterable[str]) -> Mapping[str, datetime]:
    rows = session.execute(
        select(Replica.node, func.max(Replica.ended_at))
        .where(Replica.state == ReplicaState.SUCCEEDED.value, Replica.node.in_(sorted(names)))
        .group_by(Replica.node)
    )
    return {node: at for node, at in rows if at is not None}


# Writing: compared with what was read


def _quarantine(session: Session, node: Node, made: Quarantine, now: datetime) -> bool:
    why = describe_causes(made.causes)
    values = {
        "quarantine": {"error": why, "causes": [cause.to_json() for cause in made.causes]},
        "quarantined_at": now,
        "quarantined_until": made.until,
        "quarantine_count": made.count,
        "suspicion": None,
    }
    if not _write(session, node, values):
        return False
    reason = (
        f"Node {node.name} is quarantined {until_text(made.until)}: {why}. Nothing new is placed there, what runs goes "
        f"on; `trainmaster nodes release {node.name}` opens it."
    )
    _add_event(session, node.name, "node.quarantined", reason, now, {"until": _iso(made.until), **_jobs(made.causes)})
    return True


def _release(session: Session, node: Node, why: str, changes: QuarantineChanges, now: datetime) -> bool:
    is_released_for_capacity = node.name in changes.released_for_capacity
    values = {**_OPEN, "trusted_since": now}
    if is_released_for_capacity or node.name in changes.refuted:
        values["quarantine_count"] = node.quarantine_count - 1
    if is_released_for_capacity:  # not trusted more than before
        left = changes.suspicions.get(node.name)
        values |= {"trusted_since": node.trusted_since, "suspicion": _suspicion(node.name, left) if left else None}
    if not _write(session, node, values):
        return False
    _add_event(session, node.name, "node.released", f"Node {node.name} takes work again: {why}.", now, {})
    return True


def _suspicions(session: Session, nodes: Sequence[Node], changes: QuarantineChanges, now: datetime) -> list[str]:
    changed = []
    for node in nodes:
        if node.name in changes.quarantines or node.name in changes.released_for_capacity:
            continue
        suspicion = changes.suspicions.get(node.name)
        new = None if suspicion is None else _suspicion(node.name, suspicion)
        old = node.suspicion
        if new == old or not _write(session, node, {"suspicion": new}):
            continue
        changed.append(node.name)
        # Only once per reason, not with each failure.
        if suspicion is not None and new is not None and (old is None or old["why_not"] != suspicion.why_not):
            _add_event(session, node.name, "node.suspected", new["sentence"], now, _jobs(suspicion.causes))
    return changed


def _suspicion(name: str, suspicion: Suspicion) -> dict[str, Any]:
    sentence = (
        f"Node {name} would be quarantined ({describe_causes(suspicion.causes)}), but {suspicion.why_not}; look "
        "at it, and cordon it if it is broken."
    )
    return {
        "sentence": sentence,
        "why_not": suspicion.why_not,
        "is_let_out": suspicion.is_released_for_capacity,
        "until": suspicion.until.isoformat(),
        "causes": [cause.to_json() for cause in suspicion.causes],
    }


_OPEN: Final[Mapping[str, Any]] = {
    "quarantine": None,
    "quarantined_at": None,
    "quarantined_until": None,
    "suspicion": None,
}


def _write(session: Session, node: Node, values: Mapping[str, Any]) -> bool:
    """False where another process has quarantined or released it meanwhile."""
    done = session.execute(
        update(Node)
        .where(
            Node.name == node.name,
            Node.quarantined_at.is_not_distinct_from(node.quarantined_at),
            Node.trusted_since.is_not_distinct_from(node.trusted_since),
        )
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    return bool(done.rowcount == 1)  # type: ignore[attr-defined]


def _add_event(session: Session, node: str, kind: str, reason: str, now: datetime, data: Mapping[str, Any]) -> None:
    append_event(session, at=now, kind=kind, actor=SCHEDULER, reason=reason, data={"node": node, **data})
    log.warning(kind, node=node, why=reason)


def _jobs(causes: Sequence[NodeFailureFact]) -> dict[str, Any]:
    return {"jobs": [cause.job_id for cause in causes], "errors": sorted({cause.error for cause in causes})}


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
