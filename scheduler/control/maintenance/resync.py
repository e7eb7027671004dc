"""Periodic resync: which live attempts are reconciled without a wake-up, so that a lost one costs only time.

Running attempts are checked for drift by one query for all, and one observation each, instead of a reconcile each. A
reconcile reads, locks and releases; for a thousand steady attempts that is a thousand times the work of seeing that
nothing has changed. A drifted attempt only gets a wake-up: the reconcile decides.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, and_, exists, literal, or_, select
from sqlalchemy.orm import Session

from core.db import leases
from core.db.engine import unit_of_work
from core.db.repositories.nodes import is_live
from core.db.tables import Attempt, Job, Lease, Node, Replica
from core.domain.errors import ExecutorError
from core.domain.ids import AttemptId
from core.domain.jobs.states import AttemptState, DesiredState, ReplicaState
from executors.base import Executor, Phase
from scheduler.control.attempts.completion_rules import DEADLINE_SLACK
from scheduler.control.context import ControlContext

# A steady attempt is reconciled this often.
STEADY_RESYNC: Final = timedelta(seconds=5)
# The same where a drift check and pushed changes exist: only for the unforeseen.
SAFETY_RESYNC: Final = timedelta(minutes=5)
_LIMIT: Final = 2000
# Attempts that are due by time alone are spread: thousands that began together must not all be due together again.
_STEADY_LIMIT: Final = 20
_WELL: Final = (ReplicaState.RUNNING.value, ReplicaState.SUCCEEDED.value)
DRIFT_LEASE: Final = "drift"


def due_attempts(session: Session, now: datetime, *, steady: timedelta = STEADY_RESYNC) -> list[AttemptId]:
    """Live attempts that start, end, or should: at once; the others when they were not reconciled for a while.

    Args:
        steady: that while, for attempts of which every replica runs or is done, on a node that is ready. Longer than
            ``STEADY_RESYNC`` where the executor pushes changes.
    """
    reconciled_at = Lease.expires_at  # a released lease expired at the end of the reconcile
    is_expecting = or_(
        Attempt.state != AttemptState.RUNNING.value,
        Attempt.stop.is_not(None),
        Attempt.decided_at.is_not(None),
        Job.desired_state != DesiredState.RUN.value,
    )
    reconciled_since = now - STEADY_RESYNC
    query = (
        select(Attempt.id)
        .join(Job, Job.id == Attempt.job_id)
        .outerjoin(Lease, Lease.name == literal("attempt:") + Attempt.id)
        # Not where the lease is held: that process is reconciling it.
        .where(is_live(), or_(reconciled_at.is_(None), reconciled_at <= now))
        .order_by(reconciled_at)
    )
    if steady <= STEADY_RESYNC:
        rows = session.scalars(
            query.where(or_(is_expecting, reconciled_at.is_(None), reconciled_at < reconciled_since)).limit(_LIMIT)
        )
        return [AttemptId(attempt_id) for attempt_id in rows]
    is_urgent = or_(is_expecting, reconciled_at.is_(None), and_(reconciled_at < reconciled_since, _is_troubled()))
    due = dict.fromkeys(session.scalars(query.where(is_urgent).limit(_LIMIT)))
    due |= dict.fromkeys(session.scalars(query.where(reconciled_at < now - steady).limit(_STEADY_LIMIT)))
    return [AttemptId(attempt_id) for attempt_id in due]


def _is_troubled() -> ColumnElement[bool]:
    """A failed replica may be due to restart, and a node that is not ready will count as lost: both by time alone."""
    return exists(
        select(Replica.id)
        .outerjoin(Node, Node.name == Replica.node)
        .where(Replica.attempt_id == Attempt.id, or_(Replica.state.not_in(_WELL), Node.is_ready.is_not(True)))
    )


_Name = tuple[str, int, int]  # role, index, generation


@dataclass(slots=True)
class _Running:
    """``until``: when its ``max_run_time`` is over, with slack."""

    until: datetime | None
    members: set[_Name] = field(default_factory=set)


def find_drifted(control: ControlContext, *, every: timedelta) -> list[AttemptId]:
    """Running attempts that differ from their rows; empty also when a process has checked within ``every``."""
    with unit_of_work(control.sessions) as session:
        now = control.clock()
        # Acquired by a name that no process has, and never released: it is free again when ``every`` is over.
        holder = secrets.token_hex(8)
        if leases.acquire(session, DRIFT_LEASE, holder=holder, now=now, ttl=every) is None:
            return []
        running = _running(session)
    return [attempt_id for attempt_id, meant in running.items() if _differs(control.executor, attempt_id, meant, now)]


def _running(session: Session) -> dict[AttemptId, _Running]:
    rows = session.execute(
        select(
            Attempt.id, Attempt.started_at, Job.max_run_time_s,
            Replica.role, Replica.index, Replica.generation, Replica.state,
        )
        .join(Job, Job.id == Attempt.job_id)
        .join(Replica, Replica.attempt_id == Attempt.id)
        .where(
            Attempt.state == AttemptState.RUNNING.value,
            Attempt.stop.is_(None),
            Attempt.decided_at.is_(None),
            Job.desired_state == DesiredState.RUN.value,
        )
    )  # fmt: skip
    found: defaultdict[str, _Running] = defaultdict(lambda: _Running(None))
    for attempt_id, started_at, limit_s, role, index, generation, state in rows:
        running = found[attempt_id]
        if limit_s is not None and started_at is not None:
            running.until = started_at + timedelta(seconds=limit_s) + DEADLINE_SLACK
        if state == ReplicaState.RUNNING.value:
            running.members.add((role, index, generation))
    return {AttemptId(attempt_id): running for attempt_id, running in found.items()}


def _differs(executor: Executor, attempt_id: AttemptId, meant: _Running, now: datetime) -> bool:
    if meant.until is not None and meant.until <= now:
        return True
    try:
        return not meant.members <= set(_running_replicas(executor, attempt_id))
    except ExecutorError:
        return False  # the engine is away: nothing is concluded from that


def _running_replicas(executor: Executor, attempt_id: AttemptId) -> Iterable[_Name]:
    for observation in executor.observe(attempt_id):
        if observation.phase is Phase.RUNNING:
            yield observation.key.role, observation.key.index, observation.key.generation
