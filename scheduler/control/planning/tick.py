"""The tick: one plan for all waiting jobs, applied line by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import structlog
from sqlalchemy import Table, bindparam, delete, insert, select, update
from sqlalchemy.orm import Session

from core.db import leases
from core.db.engine import unit_of_work
from core.db.repositories.planning import write_usage
from core.db.tables import Job, WaitReason
from core.domain.errors import RowsLocked, StaleWrite, Unavailable
from core.domain.ids import AttemptId, JobId
from core.domain.jobs.lifecycle import JobEvent
from core.domain.jobs.states import DesiredState, JobState
from core.wakeups import TOPIC_RECONCILE
from core.work_queue import run_together
from scheduler.control import fence
from scheduler.control.context import ControlContext
from scheduler.control.fence import RenewedLease
from scheduler.control.planning import quarantine_updates
from scheduler.control.planning.placing import StartOrder, grow, place_all
from scheduler.control.planning.plan_log import PlanLogWriter
from scheduler.control.planning.poison_jobs import FilteredPlan, PoisonJobFilter
from scheduler.control.planning.preempting import claims_of, preempt_for
from scheduler.control.planning.snapshot import (
    InputsFingerprint,
    PlannerInputs,
    SnapshotCache,
    fingerprint,
    load_snapshot,
    reason_to_json,
)
from scheduler.control.transitions import move_queued
from scheduler.planning import plan_to_apply
from scheduler.planning.model import Plan, Reason

_ROWS_PER_WRITE: Final = 500

_jobs, _reasons = cast("Table", Job.__table__), cast("Table", WaitReason.__table__)
_CHANGE: Final = update(_reasons).where(_reasons.c.shape == bindparam("row_shape"))
_ADD: Final = insert(_reasons)
_DROP: Final = delete(_reasons).where(_reasons.c.shape.in_(bindparam("shapes", expanding=True)))
_CHANGE_OWN: Final = update(_jobs).where(
    _jobs.c.id == bindparam("row_id"), _jobs.c.state == JobState.QUEUED.value
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReasonChanges:
    """Differences to what is written. ``shapes`` and ``obsolete``: rows by their key; ``own``: of single jobs, ``None``
    where a job has no reason of its own any more.
    """

    shapes: Mapping[str, Reason]
    obsolete: tuple[str, ...]
    own: Mapping[JobId, Reason | None]

    def parts(self) -> Iterator[dict[JobId, Reason | None]]:
        """``own`` in parts of the size of a transaction."""
        items = list(self.own.items())
        for begin in range(0, len(items), _ROWS_PER_WRITE):
            yield dict(items[begin : begin + _ROWS_PER_WRITE])


def changed_reasons(inputs: PlannerInputs, new_plan: Plan) -> ReasonChanges:
    """A reason per shape, and others only where they differ from it."""
    shapes = {gang.job_id: gang.shape for gang in inputs.snapshot.queued}
    keys, written, preemptions = inputs.reason_keys, inputs.shape_reasons, inputs.preempted
    firsts: dict[str, Reason] = {}
    by_key: dict[str, Reason] = {}
    own: dict[JobId, Reason] = {}
    of_shape: dict[str, dict[str, Reason]] = {}
    for job_id, reason in new_plan.waits.items():
        if job_id in preemptions:
            own[job_id] = _with_preemption(reason, preemptions[job_id])
            continue
        key = keys[job_id]
        first = firsts.get(key)
        if first is None:  # a user's first job speaks for all of them
            firsts[key] = of_shape.setdefault(shapes[job_id], {})[key] = reason
        elif first is not reason and first != reason:
            own[job_id] = reason
    for shape, of_user in of_shape.items():
        common = _common(list(of_user.values()), written.get(shape))
        if common is not None:
            by_key[shape] = common
        by_key |= {key: reason for key, reason in of_user.items() if reason is not common and reason != common}
    changes: dict[JobId, Reason | None] = {
        job_id: reason for job_id, reason in own.items() if inputs.own_reasons.get(job_id) != reason
    }
    changes |= {job_id: None for job_id in inputs.own_reasons if job_id not in own and job_id in new_plan.waits}
    return ReasonChanges(
        {key: reason for key, reason in by_key.items() if written.get(key) != reason},
        # No job waits for these reasons any more. A reason left behind would show the next job of its shape another
        # job's reason.
        tuple(key for key in written if key not in by_key),
        changes,
    )


def _common(reasons: Sequence[Reason], written: Reason | None) -> Reason | None:
    """The reason for the shape, also for jobs to come; ``None``: each user's reason is for that user alone.

    A reason with a quota or share in it is never shown to another project. What is written stays while it is still the
    reason of any user: users come and go at the head of the queue.
    """
    common = [reason for reason in reasons if "project" not in reason.numbers]
    if written is not None and written in common:
        return written
    return common[0] if common else None


def _with_preemption(reason: Reason, preemption: str) -> Reason:
    """A preempted job's reason also says why it was preempted, as long as it waits."""
    return replace(
        reason,
        sentence=f"{reason.sentence.rstrip('.')}. {preemption}",
        numbers={**reason.numbers, "preempted": preemption},
    )


def write_shape_reasons(session: Session, changes: ReasonChanges, inputs: PlannerInputs, now: datetime) -> None:
    """Only the holder of the tick's lease inserts or deletes here."""
    connection = session.connection()
    changed: list[dict[str, Any]] = []
    fresh: list[dict[str, Any]] = []
    for key, reason in changes.shapes.items():
        values = {**reason_to_json(reason), "updated_at": now}
        if key in inputs.shape_reasons:
            changed.append({"row_shape": key, **values})
        else:
            fresh.append({"shape": key, **values})
    if changed:
        connection.execute(_CHANGE, changed)
    if fresh:
        connection.execute(_ADD, fresh)
    for begin in range(0, len(changes.obsolete), _ROWS_PER_WRITE):
        connection.execute(_DROP, {"shapes": list(changes.obsolete[begin : begin + _ROWS_PER_WRITE])})


def write_job_reasons(session: Session, changes: Mapping[JobId, Reason | None]) -> None:
    """Of jobs that still wait; in the order of their ids, as always when many jobs are locked."""
    rows = [
        {"row_id": job_id, "wait_reason": None if reason is None else reason_to_json(reason)}
        for job_id, reason in sorted(changes.items(), key=lambda item: item[0])
    ]
    session.connection().execute(_CHANGE_OWN, rows)


log = structlog.get_logger(__name__)

# Reasons carry numbers that age; without any other change they are renewed at this interval.
_REFRESH: Final = timedelta(seconds=10)
# Gangs that start in one transaction, as others wait for its locks: SQLite has one writer.
STARTS_PER_WRITE: Final = 50
# After so many ticks in a row that started a job the next one does not check first whether anything has changed.
_BUSY_TICKS: Final = 2
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TickReport:
    """``recheck_at``: when time alone may change the plan. ``preempted``: attempts that were told to end or to shrink.
    ``is_skipped``: nothing had changed, or another process ticks.
    """

    started: int = 0
    waiting: int = 0
    recheck_at: datetime | None = None
    is_skipped: bool = False
    preempted: int = 0


class Ticker:
    """Ticks; one per process. Several processes may try: the lease lets one tick at a time."""

    def __init__(self, control: ControlContext) -> None:
        self.control = control
        self._cache = SnapshotCache()
        self._plan_log = PlanLogWriter(control.make_id)
        self._poison_filter = PoisonJobFilter()
        self._quarantine_schedule = quarantine_updates.QuarantineSchedule()
        self._idle_inputs: InputsFingerprint | None = None  # after a tick that left nothing to start
        self._busy_ticks = 0  # consecutive ticks that started or stopped a job
        self._ticked_at: datetime | None = None
        self._next_due: datetime | None = None
        self._marked_at = _NEVER

    def tick(self) -> TickReport:
        """Plan for all waiting jobs and apply the plan. Harmless to repeat.

        Raises:
            Unavailable: the database is away.
        """
        control = self.control
        now, inputs = control.clock(), None
        if self._busy_ticks < _BUSY_TICKS:
            with unit_of_work(control.sessions, read_only=True) as session:
                inputs = fingerprint(session)
        if inputs is not None and self._is_unchanged(inputs, now):
            if now - self._marked_at >= _REFRESH:
                with unit_of_work(control.sessions) as session:
                    self._mark_done(session)
            return TickReport(recheck_at=self._next_due, is_skipped=True)
        report = None
        with fence.leased(control, leases.TICK, on_release=self._mark_done) as lease:
            if lease is not None:
                report = self._tick(lease)
        if report is None:
            return TickReport(is_skipped=True)
        self._ticked_at, self._next_due = now, report.recheck_at
        # A start changes the queue and the nodes: tick once more.
        self._busy_ticks = self._busy_ticks + 1 if report.started or report.preempted else 0
        self._idle_inputs = None if self._busy_ticks else inputs
        return report

    def _is_unchanged(self, inputs: InputsFingerprint, now: datetime) -> bool:
        return (
            inputs == self._idle_inputs
            and self._ticked_at is not None
            and (inputs.is_queue_empty or now - self._ticked_at < _REFRESH)
            and (self._next_due is None or now < self._next_due)
        )

    def _mark_done(self, session: Session) -> None:
        self._marked_at = self.control.clock()
        leases.mark(session, leases.TICK_DONE, holder=self.control.holder, now=self._marked_at)

    def _tick(self, lease: RenewedLease) -> TickReport:
        control = self.control
        with unit_of_work(control.sessions, read_only=True) as session:
            user_requests = _unmet_user_requests(session)
            is_due = self._quarantine_schedule.is_due(session, control.clock())
        if is_due:  # before anything is placed on a broken node
            with lease.write() as session:
                quarantine_updates.update_quarantines(session, control.clock())
            self._quarantine_schedule.note_done()
        for job_id, event in user_requests:
            self._apply_user_request(lease, job_id, event)
        with unit_of_work(control.sessions, read_only=True, is_snapshot=True) as session:
            can_grow = control.can_change_worlds
            inputs = load_snapshot(session, self._cache, control.clock(), can_grow=can_grow)
        filtered_plan = self._poison_filter.plan(inputs.snapshot, inputs.generations, plan_to_apply)
        new_plan = filtered_plan.plan
        started = self._apply_starts(lease, inputs, new_plan)
        preempted = self._apply_claims(lease, inputs, new_plan)
        started += self._apply_grows(lease, inputs, new_plan)
        self._apply_waits(lease, inputs, new_plan)
        self._write_plan_log(lease, inputs, filtered_plan)
        if started or inputs.snapshot.queued:
            log.info(
                "tick.applied",
                started=started,
                preempted=preempted,
                planned=len(new_plan.starts),
                waiting=len(new_plan.waits),
            )
        return TickReport(started, len(new_plan.waits), inputs.next_due, preempted=preempted)

    def _write_plan_log(self, lease: RenewedLease, inputs: PlannerInputs, filtered_plan: FilteredPlan) -> None:
        """Write the plan log, and the shares that have changed."""
        try:
            with lease.write() as session:
                if inputs.usage:
                    write_usage(session, inputs.usage, known=inputs.known_usage)
                self._plan_log.record(session, filtered_plan.snapshot, filtered_plan.plan)
        except BaseException:
            self._plan_log.forget()
            raise

    def _apply_user_request(self, lease: RenewedLease, job_id: JobId, event: JobEvent) -> None:
        try:
            with lease.write() as session:
                move_queued(
                    session, job_id, event, "Requested while the job was between two states.", self.control.clock()
                )
        except StaleWrite:
            pass  # it has moved by itself

    def _apply_starts(self, lease: RenewedLease, inputs: PlannerInputs, new_plan: Plan) -> int:
        gangs = {gang.job_id: gang.gang for gang in inputs.snapshot.queued}
        orders = [StartOrder(start, inputs.generations[start.job_id], gangs[start.job_id]) for start in new_plan.starts]
        return sum(
            self._start(lease, orders[begin : begin + STARTS_PER_WRITE])
            for begin in range(0, len(orders), STARTS_PER_WRITE)
        )

    def _start(self, lease: RenewedLease, orders: Sequence[StartOrder]) -> int:
        """Start them in one transaction; how many did. Where it fails, each is started alone."""
        control = self.control

        def place(part: Mapping[JobId, StartOrder]) -> Mapping[JobId, AttemptId | Exception]:
            executor = control.executor.name
            with lease.write() as session:
                return place_all(
                    session, list(part.values()), executor=executor, now=control.clock(), make_id=control.make_id
                )

        started = 0
        for job_id, outcome in run_together(
            {order.start.job_id: order for order in orders}, place, _affects_all
        ).items():
            if isinstance(outcome, StaleWrite):
                log.info("job.not_placed", job=job_id, why=str(outcome))
            elif isinstance(outcome, Unavailable):
                raise outcome
            elif isinstance(outcome, Exception):
                log.error("job.place_failed", job=job_id, exc_info=outcome)
            else:
                started += 1
                log.info("job.placed", job=job_id, attempt=outcome)
                control.wakeup.notify(TOPIC_RECONCILE, outcome)
        return started

    def _apply_claims(self, lease: RenewedLease, inputs: PlannerInputs, new_plan: Plan) -> int:
        """Write the preemptions; how many attempts got one now, and not in an earlier tick."""
        control = self.control
        grace = timedelta(seconds=inputs.snapshot.policy.grace_s)
        preempted = 0
        for claim in claims_of(new_plan):
            try:
                with lease.write() as session:
                    attempt_ids = preempt_for(
                        session,
                        claim,
                        generations=inputs.generations,
                        attempts=inputs.attempts,
                        grace=grace,
                        now=control.clock(),
                    )
            except (StaleWrite, RowsLocked) as stale:
                log.info("claim.not_taken", job=claim.for_job, why=str(stale))
                continue
            except Unavailable:
                raise  # the next one would fare no better
            except Exception:
                log.exception("claim.failed", job=claim.for_job)
                continue
            preempted += len(attempt_ids)
            for attempt_id in attempt_ids:
                log.info("attempt.preempted", attempt=attempt_id, for_job=claim.for_job)
                control.wakeup.notify(TOPIC_RECONCILE, attempt_id)
        return preempted

    def _apply_grows(self, lease: RenewedLease, inputs: PlannerInputs, new_plan: Plan) -> int:
        control = self.control
        gangs = {gang.job_id: gang.gang for gang in inputs.snapshot.growing}
        grown = 0
        for growth in new_plan.grows:
            try:
                with lease.write() as session:
                    gang = gangs[growth.job_id]
                    attempt_id = grow(session, growth, gang=gang, now=control.clock(), make_id=control.make_id)
            except (StaleWrite, RowsLocked) as stale:
                log.info("job.not_grown", job=growth.job_id, why=str(stale))
                continue
            except Unavailable:
                raise  # the next one would fare no better
            except Exception:
                log.exception("job.grow_failed", job=growth.job_id)
                continue
            grown += 1
            log.info("job.grown", job=growth.job_id, attempt=attempt_id, replicas=len(growth.placements))
            control.wakeup.notify(TOPIC_RECONCILE, attempt_id)
        return grown

    def _apply_waits(self, lease: RenewedLease, inputs: PlannerInputs, new_plan: Plan) -> None:
        """Write the wait reasons that have changed."""
        changes = changed_reasons(inputs, new_plan)
        if changes.shapes or changes.obsolete:
            with lease.write() as session:
                write_shape_reasons(session, changes, inputs, self.control.clock())
        for part in changes.parts():
            with lease.write() as session:
                write_job_reasons(session, part)


def _affects_all(error: Exception) -> bool:
    """Whether the next start would fare no better: the database is away, or another process ticks."""
    return isinstance(error, (Unavailable, StaleWrite))


def _unmet_user_requests(session: Session) -> list[tuple[JobId, JobEvent]]:
    """Queued jobs that their user has asked to cancel or pause: the request came between two transitions."""
    rows = session.execute(
        select(Job.id, Job.desired_state).where(
            Job.state == JobState.QUEUED.value, Job.desired_state != DesiredState.RUN.value
        )
    ).all()
    events = {DesiredState.CANCEL: JobEvent.CANCEL, DesiredState.PAUSE: JobEvent.PAUSE}
    return [(JobId(row.id), events[DesiredState(row.desired_state)]) for row in rows]
