"""Drift check of running attempts: one query for all, and one observation each, instead of a reconcile each.

A reconcile reads, locks and releases; for a thousand steady attempts that is a thousand times the work of seeing that
nothing has changed. A drifted attempt only gets a wake-up: the reconcile decides.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import leases
from core.db.engine import unit_of_work
from core.db.tables import Attempt, Job, Replica
from core.domain.errors import ExecutorError
from core.domain.ids import AttemptId
from core.domain.jobs.states import AttemptState, DesiredState, ReplicaState
from executors.base import Executor, Phase
from scheduler.control.attempts.decide import DEADLINE_SLACK
from scheduler.control.context import ControlContext

DRIFT_LEASE: Final = "drift"

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
        return not meant.members <= set(_seen_running(executor, attempt_id))
    except ExecutorError:
        return False  # the engine is away: nothing is concluded from that


def _seen_running(executor: Executor, attempt_id: AttemptId) -> Iterable[_Name]:
    for seen in executor.observe(attempt_id):
        if seen.phase is Phase.RUNNING:
            yield seen.key.role, seen.key.index, seen.key.generation
