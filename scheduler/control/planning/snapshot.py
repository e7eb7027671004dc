"""Reading all inputs of a plan as one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import isfinite
from typing import Any, Final, NamedTuple, cast

from sqlalchemy import ColumnElement, Table, and_, bindparam, func, or_, select
from sqlalchemy.orm import Session

from core.db.engine import UntypedRow
from core.db.repositories.nodes import is_holding, is_live
from core.db.repositories.planning import UsageKey, user_shape_key
from core.db.tables import Attempt, Job, Project, Replica, User, WaitReason
from core.domain.ids import AttemptId, JobId
from core.domain.jobs.speed_curve import UNMEASURED
from core.domain.jobs.states import DesiredState, JobState
from core.domain.sharing.resources import Gang
from core.domain.sharing.usage import DecayedUsage
from scheduler.control.planning.estimates import HAS_CHECKPOINTS, IS_ENDLESS, Estimates, of_stopped
from scheduler.control.planning.node_cache import NodeCache, RawNode, raw_nodes, usage_of
from scheduler.control.planning.planner_inputs import changed_usage, load_settings, settings_fingerprint
from scheduler.control.planning.quarantine_updates import failures_fingerprint, next_change
from scheduler.control.planning.running import (
    STOP_GRACE_S,
    late_after_limit,
    load_growing,
    load_running,
    plannable_limit_s,
    running_rows,
)
from scheduler.control.planning.speeds import Speeds
from scheduler.planning.elastic_balance import next_balance
from scheduler.planning.forecast.durations import JobTraits
from scheduler.planning.model import (
    OVER_BUDGET,
    Account,
    Estimate,
    QueuedGang,
    Reason,
    Snapshot,
    WaitReasonCode,
)
from scheduler.planning.queue.overtaking import next_overtaken_s
from scheduler.planning.queue.policy_key import BY_LENGTH, next_comparison_s, turns_taken

GANG_CACHE_SIZE: Final = 20_000
# SQLite limits the number of parameters; above this number of changes everything is read at once.
_CHUNK: Final = 500
_ALL_AT_ONCE: Final = 2000
_LEAST_TURN: Final = timedelta(seconds=1)

# Built once: they are executed many times a second.
_jobs, _attempts, _replicas = (cast("Table", table.__table__) for table in (Job, Attempt, Replica))
_QUEUE: Final = select(func.count().label("length"), func.max(_jobs.c.queued_at)).where(
    _jobs.c.state == JobState.QUEUED.value
)
_LIVE: Final = select(
    func.count(), func.max(_attempts.c.id), func.sum(_attempts.c.world), func.count(_attempts.c.stop),
    func.count(_attempts.c.started_at),
).where(is_live())  # fmt: skip
_WAITING: Final = select(_jobs.c.id, _jobs.c.generation, _jobs.c.wait_reason).where(
    _jobs.c.state == JobState.QUEUED.value,
    _jobs.c.desired_state == DesiredState.RUN.value,
    or_(_jobs.c.not_before.is_(None), _jobs.c.not_before <= bindparam("now")),
)
_HOLDING: Final = select(func.count(), func.max(_replicas.c.id), func.count(_replicas.c.removal)).where(is_holding())


@dataclass(frozen=True, slots=True)
class PlannerInputs:
    """A snapshot, and what applying its plan compares with.

    ``next_due``: when time alone may change the plan: the back-off of a job or a lost replica ends, a booking begins or
    ends, a quarantine ends, a guaranteed run time or a turn of a running job ends, or a waiting job has starved for
    long enough to come first again. ``shape_reasons`` and ``own_reasons``: as written now; ``reason_keys``: the key of
    the former under which a waiting job's reason is looked up first, as one of its user's. ``attempts``: the live
    attempt of each running job. ``preempted``: why waiting jobs were preempted. ``usage``: shares to be written;
    ``known_usage``: those that have rows.
    """

    snapshot: Snapshot
    generations: Mapping[JobId, int]
    shape_reasons: Mapping[str, Reason]
    own_reasons: Mapping[JobId, Reason]
    next_due: datetime | None
    attempts: Mapping[JobId, AttemptId] = field(default_factory=dict)
    preempted: Mapping[JobId, str] = field(default_factory=dict)
    usage: Mapping[UsageKey, DecayedUsage] = field(default_factory=dict)
    known_usage: frozenset[UsageKey] = frozenset()
    reason_keys: Mapping[JobId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A waiting job as it was read; ``version``: of the estimates that were used for it.

    ``has_own_estimate``: its estimate does not depend on others: it reported its remaining run time when its last
    attempt ended, or it has no end. ``has_checkpoints``: of its own.
    """

    generation: int
    queued: QueuedGang
    traits: JobTraits
    ran_s: float
    preempted: str
    reason_key: str
    version: int = 0
    has_own_estimate: bool = False
    has_checkpoints: bool = False


@dataclass(slots=True)
class SnapshotCache:
    """What the last tick read. A waiting job changes only together with its generation.

    ``gangs`` are by shape: equal shapes are equal gangs, and a queue of thousands has a handful of them.
    """

    gangs: dict[str, Gang] = field(default_factory=dict)
    jobs: dict[JobId, _Waiting] = field(default_factory=dict)
    estimates: Estimates = field(default_factory=Estimates)
    speeds: Speeds = field(default_factory=Speeds)
    node_cache: NodeCache = field(default_factory=NodeCache)


class InputsFingerprint(NamedTuple):
    """A few cheap numbers that change whenever a plan could. ``queue`` and the two after it: sums of rows."""

    queue: UntypedRow
    live_attempts: UntypedRow
    holding_replicas: UntypedRow
    nodes: Sequence[RawNode]
    settings: tuple[Any, ...]
    failures: tuple[Any, ...]

    @property
    def is_queue_empty(self) -> bool:
        return not self.queue.length


def fingerprint(session: Session) -> InputsFingerprint:
    """The queue's numbers are read from an index alone. A new job has a later time than all others, unless it is
    requeued, and then its attempt ends; a job that only becomes due is covered by ``PlannerInputs.next_due``.
    """
    queue, attempts, replicas = (session.connection().execute(query).one() for query in (_QUEUE, _LIVE, _HOLDING))
    return InputsFingerprint(
        queue, attempts, replicas, raw_nodes(session), settings_fingerprint(session), failures_fingerprint(session)
    )


def load_snapshot(session: Session, cache: SnapshotCache, now: datetime, *, can_grow: bool = False) -> PlannerInputs:
    """Queue, running gangs and nodes as one consistent view.

    Jobs in back-off are left out; they keep their own reason. ``can_grow``: whether the executor can add replicas to a
    running gang.
    """
    rows = running_rows(session)
    _fill_gangs(session, cache.gangs, {row.shape for row in rows})
    gangs = {row.shape: cache.gangs[row.shape] for row in rows}  # waiting jobs may evict them from the cache
    cache.estimates.refresh(session, now)
    own_reasons = _refresh(session, cache, now)
    settings = load_settings(session, now)
    holdings = cache.node_cache.holders(session)
    growing, grows_at = load_growing(session, gangs, now) if can_grow else ((), None)
    elastic_shapes = {shape for shape, gang in cache.gangs.items() if gang.elastic is not None}
    if elastic_shapes:
        cache.speeds.refresh(session, now)
    live, leaving = load_running(session, rows, gangs, holdings, (cache.estimates, cache.speeds), now)
    curves = {attempt.job_id: attempt.view.speed for attempt in live}
    growing = tuple(replace(gang, speed=curves.get(gang.job_id, UNMEASURED)) for gang in growing)
    # An engine that cannot send new worlds to replicas cannot shrink a gang.
    policy = settings.policy if can_grow else replace(settings.policy, shrinks=False)
    queued = (
        _with_speed(job.queued, cache.speeds) if job.queued.shape in elastic_shapes else job.queued
        for job in cache.jobs.values()
    )
    snapshot = Snapshot(
        now=now,
        nodes=cache.node_cache.nodes(session, usage_of(holdings.values())),
        queued=tuple(with_budget_priority(queued, settings.accounts)),
        running=(*(attempt.view for attempt in live), *leaving),
        growing=growing,
        accounts=settings.accounts,
        bookings=settings.bookings,
        policy=policy,
        finished_run_times=cache.estimates.finished_run_times,
    )
    ends = session.execute(
        select(func.min(Job.not_before)).where(Job.state == JobState.QUEUED.value, Job.not_before > now)
    ).scalar_one()
    usage, usage_at = changed_usage(settings, snapshot, {attempt.view.user: attempt.user_id for attempt in live})
    moves_at = next_balance(snapshot.running, policy, now) if growing else None
    dues = (
        ends,
        grows_at,
        moves_at,
        settings.next_change(now),
        next_change(session, now),
        next_turn(snapshot),
        usage_at,
    )
    return PlannerInputs(
        snapshot=snapshot,
        generations={job_id: job.generation for job_id, job in cache.jobs.items()},
        shape_reasons=_shape_reasons(session),
        own_reasons=own_reasons,
        next_due=min((at for at in dues if at is not None), default=None),
        attempts={attempt.job_id: attempt.attempt_id for attempt in live},
        preempted={job_id: job.preempted for job_id, job in cache.jobs.items() if job.preempted},
        usage=usage,
        known_usage=frozenset(settings.usage),
        reason_keys={job_id: job.reason_key for job_id, job in cache.jobs.items()},
    )


def with_budget_priority(jobs: Iterable[QueuedGang], accounts: Sequence[Account]) -> Iterable[QueuedGang]:
    """``jobs``, with the lowest priority for those of projects that are over their budget."""
    projects = {account.project for account in accounts if account.is_over_budget}
    if not projects:
        return jobs
    return [replace(job, priority=OVER_BUDGET) if job.project in projects else job for job in jobs]


def _with_speed(job: QueuedGang, speeds: Speeds) -> QueuedGang:
    return replace(job, speed=speeds.of(job.job_id, job.project, job.user, job.name))


def next_turn(snapshot: Snapshot) -> datetime | None:
    """When the next guaranteed run time or turn of a running job ends, or a waiting job has starved for long enough."""
    if not snapshot.queued:
        return None
    now, policy = snapshot.now, snapshot.policy
    live = [(gang.started_at, gang) for gang in snapshot.running if gang.started_at and not gang.is_stopping]
    in_turns = [(began, gang) for began, gang in live if gang.is_resumable]  # no other is stopped for a turn
    turns_s = [s for s in (policy.time_slice_s, policy.rotation_s) if s is not None]
    ends = [began + timedelta(seconds=policy.min_run_time_s) for began, _ in live]
    ends += [began + timedelta(seconds=s) for began, _ in in_turns for s in turns_s]
    starves = timedelta(seconds=policy.starvation_s)
    waits = min((gang.waits_since or gang.queued_at for gang in snapshot.queued), default=now)
    times = [end for end in ends if end > now]
    if policy.order in BY_LENGTH and policy.time_slice_s is not None:
        for began, _ in in_turns:
            ran_s = (now - began).total_seconds()
            times.append(began + timedelta(seconds=next_comparison_s(ran_s, policy)))
    if policy.order in BY_LENGTH and isfinite(overtaken_s := next_overtaken_s(snapshot.queued, now)):
        times.append(now + timedelta(seconds=overtaken_s))
    if policy.rotation_s is not None:  # the run time of earlier attempts counts, and may fill the turn later
        for began, gang in in_turns:
            whole_s = (turns_taken(gang, policy, now) + 1) * policy.rotation_s
            times.append(began + timedelta(seconds=whole_s - gang.earlier_s))
    if waits + starves > now:
        times.append(waits + starves)
    if not times:
        return None
    # A thousand jobs starve one after the other; a tick for each of them is not needed.
    return max(min(times), now + _LEAST_TURN)


def _refresh(session: Session, cache: SnapshotCache, now: datetime) -> dict[JobId, Reason]:
    """Bring ``cache.jobs`` up to date: all ids and generations are read, the rest only of new and changed jobs.

    Returns:
        Reasons of single jobs.
    """
    rows = session.connection().execute(_WAITING, {"now": now}).all()
    own_reasons: dict[JobId, Reason] = {}
    jobs: dict[JobId, _Waiting] = {}
    fresh: list[str] = []
    known, version = cache.jobs, cache.estimates.version
    for job_id, generation, written in rows:  # unpacked once: that costs more than all the rest
        job = known.get(job_id)
        if job is None or job.generation != generation:
            fresh.append(job_id)
        else:
            jobs[job_id] = job if job.version == version else _learn(job, cache.estimates)
        if written is not None:
            own_reasons[JobId(job_id)] = reason_from_json(written)
    cache.jobs = jobs
    if len(fresh) > _ALL_AT_ONCE:
        is_due = or_(Job.not_before.is_(None), Job.not_before <= now)
        is_waiting = and_(Job.state == JobState.QUEUED.value, Job.desired_state == DesiredState.RUN.value)
        _read_queued(session, cache, and_(is_waiting, is_due))
        return own_reasons
    for begin in range(0, len(fresh), _CHUNK):
        _read_queued(session, cache, Job.id.in_(fresh[begin : begin + _CHUNK]))
    return own_reasons


def _learn(waiting: _Waiting, estimates: Estimates) -> _Waiting:
    queued, estimate = waiting.queued, waiting.queued.estimate
    if not waiting.has_own_estimate:
        estimate = estimates.of_waiting(waiting.traits, waiting.ran_s, queued.max_run_time_s)
    is_resumable = waiting.has_checkpoints or estimates.is_resumable(waiting.traits)
    if estimate != queued.estimate or is_resumable != queued.is_resumable:
        queued = replace(queued, estimate=estimate, is_resumable=is_resumable)
    return replace(waiting, queued=queued, version=estimates.version)


def _read_queued(session: Session, cache: SnapshotCache, where: ColumnElement[bool]) -> None:
    rows = session.execute(
        select(
            Job.id, Job.name, Job.priority, Job.queued_at, Job.shape, Job.generation, Job.max_run_time_s,
            Job.attained_gpu_s, Job.run_s, Job.waiting_since, Job.preemption, Job.preempting_since,
            STOP_GRACE_S, IS_ENDLESS, HAS_CHECKPOINTS, Job.project_id, Job.user_id,
            Job.spec["code"].as_string().label("code"),
            Job.spec["preemptible"].as_boolean().label("preemptible"), Project.name.label("project"),
            User.name.label("user"),
        )
        .join(Project, Project.id == Job.project_id)
        .join(User, User.id == Job.user_id)
        .where(where)
    ).all()  # fmt: skip
    _fill_gangs(session, cache.gangs, {row.shape for row in rows})
    estimates = cache.estimates
    again = [r.id for r in rows if r.run_s > 0]
    own: dict[str, Estimate] = {}
    for begin in range(0, len(again), _CHUNK):
        own |= of_stopped(session, again[begin : begin + _CHUNK])
    for r in rows:
        preempting_since = r.preempting_since
        traits = JobTraits(r.project, r.user, r.name, r.code or "", r.shape)
        limit_s = plannable_limit_s(r.max_run_time_s)
        queued = QueuedGang(
            JobId(r.id), r.name, r.project, r.user, r.priority, r.queued_at, cache.gangs[r.shape], r.shape, limit_s,
            attained_gpu_s=r.attained_gpu_s,
            estimate=None if r.is_endless else own.get(r.id) or estimates.of_waiting(traits, r.run_s, limit_s),
            waits_since=r.waiting_since if r.waiting_since is not None and r.waiting_since > r.queued_at else None,
            room_since=preempting_since if preempting_since is not None and preempting_since >= r.queued_at else None,
            is_preemptible=r.preemptible is not False,
            overrun_s=late_after_limit(r.stop_grace_s).total_seconds(),
            earlier_s=r.run_s,
            is_resumable=r.has_checkpoints or estimates.is_resumable(traits),
        )  # fmt: skip
        preempted = "" if r.preemption is None else str(r.preemption["sentence"])
        key = user_shape_key(r.shape, r.project_id, r.user_id)
        cache.jobs[JobId(r.id)] = _Waiting(
            r.generation,
            queued,
            traits,
            r.run_s,
            preempted,
            key,
            estimates.version,
            r.is_endless or r.id in own,
            r.has_checkpoints,
        )


def _fill_gangs(session: Session, gangs: dict[str, Gang], shapes: set[str]) -> None:
    missing = sorted(shapes - gangs.keys())
    if missing and len(gangs) + len(missing) > GANG_CACHE_SIZE:
        gangs.clear()
        missing = sorted(shapes)
    for begin in range(0, len(missing), _CHUNK):
        chunk = missing[begin : begin + _CHUNK]
        # One job of each shape is enough.
        firsts = select(func.min(Job.id)).where(Job.shape.in_(chunk)).group_by(Job.shape).scalar_subquery()
        for shape, gang in session.execute(select(Job.shape, Job.gang).where(Job.id.in_(firsts))):
            gangs[shape] = Gang.from_json(gang)


def _shape_reasons(session: Session) -> dict[str, Reason]:
    rows = session.execute(select(WaitReason.shape, WaitReason.code, WaitReason.sentence, WaitReason.numbers))
    return {row.shape: Reason(WaitReasonCode(row.code), row.sentence, row.numbers) for row in rows}


def reason_from_json(data: Mapping[str, Any]) -> Reason:
    return Reason(WaitReasonCode(data["code"]), data["sentence"], dict(data.get("numbers", {})))


def reason_to_json(reason: Reason) -> dict[str, Any]:
    return {"code": reason.code.value, "sentence": reason.sentence, "numbers": dict(reason.numbers)}
