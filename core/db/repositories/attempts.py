"""Attempts and their replicas as the API reads them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.tables import Attempt, Replica

AttemptRows = tuple[Attempt, list[Replica]]


def attempts_of_job(session: Session, job_id: str, *, after: int, limit: int) -> list[AttemptRows]:
    """At most ``limit`` attempts with numbers above ``after``, oldest first, each with its replicas in rank order.

    Two statements.
    """
    query = select(Attempt).where(Attempt.job_id == job_id, Attempt.number > after).order_by(Attempt.number)
    return _with_replicas(session, session.execute(query.limit(limit)).scalars().all())


def newest_attempt(session: Session, job_id: str) -> AttemptRows | None:
    query = select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.number.desc()).limit(1)
    return next(iter(_with_replicas(session, session.execute(query).scalars().all())), None)


def attempt_by_number(session: Session, job_id: str, number: int) -> AttemptRows | None:
    attempt = bare_attempt(session, job_id, number)
    return None if attempt is None else _with_replicas(session, [attempt])[0]


def replicas_of_attempt(session: Session, attempt_id: str, *, after: int, limit: int) -> Sequence[Replica]:
    """At most ``limit`` replicas of ranks above ``after``, in rank order."""
    query = select(Replica).where(Replica.attempt_id == attempt_id, Replica.rank > after).order_by(Replica.rank)
    return session.execute(query.limit(limit)).scalars().all()


def replica_by_name(session: Session, attempt_id: str, role: str, index: int) -> Replica | None:
    query = select(Replica).where(Replica.attempt_id == attempt_id, Replica.role == role, Replica.index == index)
    return session.execute(query).scalar_one_or_none()


def bare_attempt(session: Session, job_id: str, number: int) -> Attempt | None:
    """The attempt without its replicas, which may be thousands."""
    return session.execute(
        select(Attempt).where(Attempt.job_id == job_id, Attempt.number == number)
    ).scalar_one_or_none()


def live_attempt_id(session: Session, job_id: str) -> str | None:
    """The attempt that has not ended, if there is one."""
    query = select(Attempt.id).where(Attempt.job_id == job_id, Attempt.ended_at.is_(None))
    return session.execute(query.order_by(Attempt.number.desc()).limit(1)).scalar_one_or_none()


def is_decided(session: Session, job_id: str) -> bool:
    """Whether the script has finished by itself, and only the job's end remains to be written."""
    query = select(Attempt.id).where(
        Attempt.job_id == job_id, Attempt.ended_at.is_(None), Attempt.decided_at.is_not(None)
    )
    return session.execute(query.limit(1)).first() is not None


def _with_replicas(session: Session, attempts: Sequence[Attempt]) -> list[AttemptRows]:
    if not attempts:
        return []
    ids = [attempt.id for attempt in attempts]
    members: defaultdict[str, list[Replica]] = defaultdict(list)
    for replica in session.execute(select(Replica).where(Replica.attempt_id.in_(ids)).order_by(Replica.rank)).scalars():
        members[replica.attempt_id].append(replica)
    return [(attempt, members[attempt.id]) for attempt in attempts]
