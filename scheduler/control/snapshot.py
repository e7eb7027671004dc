"""Reading everything that a plan depends on, in one short look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from core.db.repositories.nodes import is_holding, is_live
from core.db.tables import Attempt, Job, Project, Replica, User, WaitReason
from core.domain.ids import JobId
from core.domain.resources import Gang
from core.domain.states import JobState, Wanted
from scheduler.control.fleet import Fleet, raw_nodes, usage_of
from scheduler.control.growing import load_growing
from scheduler.planning.model import QueuedGang, Reason, ReasonCode, RunningGang, Snapshot

_GANG_CACHE_SIZE: Final = 20_000
# SQLite takes a limited number of parameters; with more news than this all is read in one go.
_CHUNK: Final = 500
_ALL_AT_ONCE: Final = 2000


@dataclass(frozen=True, slots=True)
class Loaded:
    """A snapshot and what applying its plan compares with.

    ``next_due``: when the next back-off is over, of a job or of a lost replica. ``shape_reasons`` and ``own_reasons`` are what is written now.
    """

    snapshot: Snapshot
    generations: Mapping[JobId, int]
    shape_reasons: Mapping[str, Reason]
    own_reasons: Mapping[JobId, Reason]
    next_due: datetime | None


@dataclass(slots=True)
class TickCache:
    """What the last tick read. A job that waits changes only together with its generation.

    ``gangs`` are by shape: equal shapes are equal gangs, and a queue of thousands has a handful of them.
    """

    gangs: dict[str, Gang] = field(default_factory=dict)
    jobs: dict[str, tuple[int, QueuedGang]] = field(default_factory=dict)
    fleet: Fleet = field(default_factory=Fleet)


def fingerprint(session: Session) -> tuple[Any, ...]:
    """A few cheap numbers that change whenever a plan could: queue, holders, nodes.

    The queue's are read from an index alone. A job that comes has a newer time than all others, unless it comes from an
    attempt, which then ends; one that only becomes due is met by ``Loaded.next_due``.
    """
    queue = session.execute(
        select(func.count(), func.max(Job.queued_at)).where(Job.state == JobState.QUEUED.value)
    ).one()
    attempts = session.execute(
        select(func.count(), func.max(Attempt.id), func.sum(Attempt.world)).where(is_live())
    ).one()
    holders = session.execute(select(func.count(), func.max(Replica.id)).where(is_holding())).one()
    return (tuple(queue), tuple(attempts), tuple(holders), raw_nodes(session))


def load_snapshot(session: Session, cache: TickCache, now: datetime, *, can_grow: bool = False) -> Loaded:
    """Queue, running gangs and nodes as one consistent view.

    Jobs in back-off are left out; they keep their own reason. ``can_grow``: whether the executor can give a running gang
    another replica.
    """
    running_rows = session.execute(
        select(
            Job.id, Job.name, Job.priority, Job.shape, Job.max_run_time_s,
            Project.name.label("project"), Attempt.started_at, Attempt.id.label("attempt_id"),
        )
        .join(Attempt, Attempt.job_id == Job.id)
        .join(Project, Project.id == Job.project_id)
        .where(is_live())
    ).all()  # fmt: skip
    _fill_gangs(session, cache.gangs, {row.shape for row in running_rows})
    _refresh(session, cache, now)
    held = cache.fleet.holders(session)
    gangs = {row.shape: cache.gangs[row.shape] for row in running_rows}
    growing, grows_at = load_growing(session, gangs, now) if can_grow else ((), None)
    snapshot = Snapshot(
        now=now,
        nodes=cache.fleet.nodes(session, usage_of(held.values())),
        queued=tuple(queued for _, queued in cache.jobs.values()),
        running=tuple(
            RunningGang(
                JobId(r.id), r.name, r.project, r.priority, cache.gangs[r.shape],
                tuple((one.role, one.node) for one in held.get(r.attempt_id, ())),
                _expected_end(r.started_at, r.max_run_time_s),
                tuple(one.gpu_model for one in held.get(r.attempt_id, ())),
            )
            for r in running_rows
        ),
        growing=growing,
    )  # fmt: skip
    ends = session.execute(
        select(func.min(Job.not_before)).where(Job.state == JobState.QUEUED.value, Job.not_before > now)
    ).scalar_one()
    return Loaded(
        snapshot=snapshot,
        generations={JobId(job_id): generation for job_id, (generation, _) in cache.jobs.items()},
        shape_reasons=_shape_reasons(session),
        own_reasons=_own_reasons(session, now),
        next_due=min((at for at in (ends, grows_at) if at is not None), default=None),
    )


def _is_due(now: datetime) -> Any:
    return or_(Job.not_before.is_(None), Job.not_before <= now)


def _refresh(session: Session, cache: TickCache, now: datetime) -> None:
    """Bring ``cache.jobs`` up to date: all ids and generations are read, the rest only of what is new."""
    is_waiting = and_(Job.state == JobState.QUEUED.value, Job.wanted == Wanted.RUN.value, _is_due(now))
    present = {row.id: row.generation for row in session.execute(select(Job.id, Job.generation).where(is_waiting))}
    known = cache.jobs
    cache.jobs = {job_id: known[job_id] for job_id in present if known.get(job_id, (0,))[0] == present[job_id]}
    fresh = [job_id for job_id in present if job_id not in cache.jobs]
    if len(fresh) > _ALL_AT_ONCE:
        _read_queued(session, cache, is_waiting)
        return
    for begin in range(0, len(fresh), _CHUNK):
        _read_queued(session, cache, Job.id.in_(fresh[begin : begin + _CHUNK]))


def _read_queued(session: Session, cache: TickCache, where: ColumnElement[bool]) -> None:
    rows = session.execute(
        select(
            Job.id, Job.name, Job.priority, Job.queued_at, Job.shape, Job.generation, Job.max_run_time_s,
            Project.name.label("project"), User.name.label("user"),
        )
        .join(Project, Project.id == Job.project_id)
        .join(User, User.id == Job.user_id)
        .where(where)
    ).all()  # fmt: skip
    _fill_gangs(session, cache.gangs, {row.shape for row in rows})
    for r in rows:
        gang = cache.gangs[r.shape]
        queued = QueuedGang(
            JobId(r.id), r.name, r.project, r.user, r.priority, r.queued_at, gang, r.shape, r.max_run_time_s
        )
        cache.jobs[r.id] = (r.generation, queued)


def _fill_gangs(session: Session, gangs: dict[str, Gang], shapes: set[str]) -> None:
    missing = sorted(shapes - gangs.keys())
    if missing and len(gangs) + len(missing) > _GANG_CACHE_SIZE:
        gangs.clear()
        missing = sorted(shapes)
    for begin in range(0, len(missing), _CHUNK):
        chunk = missing[begin : begin + _CHUNK]
        # One job of each shape is enough.
        firsts = select(func.min(Job.id)).where(Job.shape.in_(chunk)).group_by(Job.shape).scalar_subquery()
        for shape, gang in session.execute(select(Job.shape, Job.gang).where(Job.id.in_(firsts))):
            gangs[shape] = Gang.from_json(gang)


def _expected_end(started_at: datetime | None, max_run_time_s: float | None) -> datetime | None:
    if started_at is None or max_run_time_s is None:
        return None
    return started_at + timedelta(seconds=max_run_time_s)


def _shape_reasons(session: Session) -> dict[str, Reason]:
    rows = session.execute(select(WaitReason.shape, WaitReason.code, WaitReason.sentence, WaitReason.numbers))
    return {row.shape: Reason(ReasonCode(row.code), row.sentence, row.numbers) for row in rows}


def _own_reasons(session: Session, now: datetime) -> dict[JobId, Reason]:
    rows = session.execute(
        select(Job.id, Job.wait_reason).where(
            Job.state == JobState.QUEUED.value, Job.wait_reason.is_not(None), _is_due(now)
        )
    )
    return {JobId(row.id): reason_from_json(row.wait_reason) for row in rows if row.wait_reason is not None}


def reason_from_json(data: Mapping[str, Any]) -> Reason:
    return Reason(ReasonCode(data["code"]), data["sentence"], dict(data.get("numbers", {})))


def reason_to_json(reason: Reason) -> dict[str, Any]:
    return {"code": reason.code.value, "sentence": reason.sentence, "numbers": dict(reason.numbers)}
