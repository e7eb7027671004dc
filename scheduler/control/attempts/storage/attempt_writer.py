"""Writing the decision about one attempt: compared with what was read, with its events in the same transaction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, cast

from sqlalchemy import Table, bindparam, select, update
from sqlalchemy.orm import Session

from core.db.repositories.events import event_row
from core.db.tables import Attempt, Job
from core.domain.jobs.layout import Layout
from core.domain.jobs.lifecycle import AttemptEvent, Effect, JobEvent, Move, ReplicaEvent, advance
from core.domain.jobs.states import JobState, ReplicaState
from core.wakeups import TOPIC_STUDY, TOPIC_TICK
from executors.base import Observation, Phase
from scheduler.control.attempts.attempt_snapshot import AttemptFacts, GangMember, JobFacts, Stop, StopCause
from scheduler.control.attempts.decision import Decision
from scheduler.control.attempts.ending import AttemptEnd
from scheduler.control.attempts.launching.environment import EnvironmentNote
from scheduler.control.attempts.storage.attempt_loader import AttemptRows
from scheduler.control.attempts.storage.replica_writer import ReplicaWriter
from scheduler.control.attempts.storage.statement_batch import StatementBatch
from scheduler.control.attempts.worlds import WorldChange
from scheduler.control.journal import EXECUTOR, SCHEDULER, Journal
from scheduler.planning.model import WaitReasonCode

# Built once; columns to change are given as parameters.
_attempts, _jobs = (cast("Table", table.__table__) for table in (Attempt, Job))
_CHANGE_ATTEMPT: Final = (
    update(_attempts)
    .where(_attempts.c.id == bindparam("row_id"), _attempts.c.generation == bindparam("expected_generation"))
    .values(generation=_attempts.c.generation + 1)
)
_TOUCH_JOB: Final = update(_jobs).where(_jobs.c.id == bindparam("row_id"))
_START_JOB: Final = _TOUCH_JOB.where(_jobs.c.started_at.is_(None))
_COUNT_RESTARTS: Final = _TOUCH_JOB.values(restart_count=_jobs.c.restart_count + bindparam("more"))
_COUNT_SERVICE: Final = _TOUCH_JOB.values(
    attained_gpu_s=_jobs.c.attained_gpu_s + bindparam("service"), run_s=_jobs.c.run_s + bindparam("ran")
)
_COUNT_PREEMPTION: Final = _TOUCH_JOB.values(preempt_count=_jobs.c.preempt_count + 1)
_CHANGE_JOB: Final = _TOUCH_JOB.where(_jobs.c.state == bindparam("expected_state")).values(
    generation=_jobs.c.generation + 1
)
_CHANGE_SAME_JOB: Final = _CHANGE_JOB.where(_jobs.c.generation == bindparam("expected_generation"))
# Every start waits for so long.
STARTUP_QUIET_TIME: Final = timedelta(seconds=5)
_STARTING: Final = "starting"
_STATUS_CHARS: Final = 2000
_NUMBERS: Final = re.compile(r"\d+")


class AttemptWriter:
    """Collects the statements of one transaction in ``writes``; they are sent where the lease has been checked."""

    def __init__(self, rows: AttemptRows, now: datetime) -> None:
        self.writes = StatementBatch()
        self.rows = rows
        self.now = now
        self.job: JobFacts = rows.job
        self.attempt: AttemptFacts = rows.attempt
        self.job_state = self.job.state
        self.is_touched = False
        self.replicas = ReplicaWriter(self.writes, rows, now, self._add_event)

    # Public: one of these methods per writer

    def start(self, layout: Layout, resume_from: str | None, note: EnvironmentNote) -> None:
        """The attempt has its addresses: no replica is created before this is written."""
        move = advance(self.attempt.state, AttemptEvent.START)
        self._attempt(state=move.state.value, layout=layout.to_json(), resume_from=resume_from)
        self._touch_job()
        count = len(layout.replicas)
        reason = (
            f"Attempt {self.attempt.number}: {count} {'replica is' if count == 1 else 'replicas are'} being started"
        )
        reason += f", going on from {resume_from}." if resume_from else "."
        self._add_event(move.kind, reason, data={"number": self.attempt.number})
        if note:
            self._add_event("attempt.environment", note.sentence, data=note.to_json())

    def record(self, decision: Decision, layout: Layout | None = None, resume_from: str | None = None) -> None:
        """Everything of ``decision`` except its end. ``layout``: of its next world.

        Args:
            resume_from: the checkpoint of processes that start from now on; ``None``: unchanged.
        """
        changes: dict[str, Any] = {}
        if resume_from is not None:
            changes["resume_from"] = resume_from
        if decision.world is not None and layout is not None:
            changes |= {
                "world": self.attempt.world + 1,
                "layout": layout.to_json(),
                "world_reason": decision.world.reason,
            }
        if decision.stop is not None:
            changes["stop"] = decision.stop.to_json()
        if decision.is_decided:
            changes["decided_at"] = self.now
        if decision.is_running:
            changes |= self._run(decision)
        self._attempt(**changes)
        self.replicas.move(decision.moves)
        self.replicas.note(decision.notes)
        if decision.world is not None:
            self._world(decision.world)
        again = [item.member for item in decision.moves if item.event is ReplicaEvent.RESTART]
        self._count_service([*decision.releases, *again], is_whole=False)
        self.replicas.release(decision.releases)
        if decision.is_running:
            self._job(JobEvent.RUN, "All replicas run." if len(self.rows.members) > 1 else "The command runs.")
        if decision.stop is not None:
            self._stopping(decision.stop)
        if decision.counted_restarts:
            self._count_restarts(decision.counted_restarts)
        self._touch_job()

    def created(self, members: Sequence[GangMember], details: Mapping[str, str]) -> None:
        """``members`` were taken by the executor; ``details``: replica id -> why it was not."""
        self._attempt()
        self.replicas.hand_over(members, details)
        self._touch_job()

    def end(self, end: AttemptEnd, unkilled_replicas: Sequence[str] = ()) -> list[tuple[str, str]]:
        """The attempt is over, and only ``unkilled_replicas`` are left of it, a sentence for each.

        Returns the wake-ups to send after the commit.
        """
        for sentence in unkilled_replicas:
            self._add_event("replica.abandoned", sentence, actor=EXECUTOR)
        move = advance(self.attempt.state, AttemptEvent.END)
        self._attempt(
            state=move.state.value,
            end=end.to_json(),
            counts_as_restart=end.is_counted,
            ended_at=self.now,
            swept_at=self.now,
        )
        if end.event is JobEvent.CONFIRM_CANCEL and self.job_state is not JobState.CANCELLING:
            self._job(JobEvent.CANCEL, end.sentence)
        self._count_service(self.rows.members)
        effects = self._job(end.event, self._end_reason(end), end)
        wakeups = [(TOPIC_TICK, "")] if Effect.RING_TICK in effects | move.effects else []
        if self.job.trial is not None and self.job_state.is_terminal:
            wakeups.append((TOPIC_STUDY, self.job.trial["study_id"]))
        return wakeups

    # Parts

    def _run(self, decision: Decision) -> dict[str, Any]:
        move = advance(self.attempt.state, AttemptEvent.RUN)
        ran = [m.at for m in decision.moves if m.event is ReplicaEvent.RUN]
        ran += [m.started_at for m in self.rows.members if m.started_at is not None]
        return {"state": move.state.value, "started_at": min(max(ran, default=self.now), self.now)}

    def _world(self, change: WorldChange) -> None:
        self.replicas.rank(change.members)
        number = self.attempt.world + 1
        self._add_event(
            "attempt.world",
            f"World {number}: {change.reason}",
            data={"world": number, "replicas": [m.name for m in change.members[:100]], "count": len(change.members)},
        )

    def _stopping(self, stop: Stop) -> None:
        self._add_event("attempt.stopping", stop.sentence, data={"cause": stop.cause.value})
        if stop.cause is StopCause.CANCEL and self.job_state is not JobState.CANCELLING:
            self._job(JobEvent.CANCEL, stop.sentence)

    def _end_reason(self, end: AttemptEnd) -> str:
        if end.event is not JobEvent.REQUEUE:
            return end.sentence
        if self._preemption is not None:
            return end.sentence
        when = f"in {end.delay.total_seconds():g} s" if end.delay else "at once"
        return f"{end.sentence} Attempt {self.attempt.number + 1} starts {when}."

    def _job(self, event: JobEvent, reason: str, end: AttemptEnd | None = None) -> frozenset[Effect]:
        """Move the job. Compared with its generation: a user may have requested something else meanwhile."""
        move = advance(self.job_state, event)
        values: dict[str, Any] = {"state": move.state.value, "updated_at": self.now, **_stamps(move, self.now)}
        if end is not None and move.state.is_terminal:
            values["exit"] = end.to_json()
        if event is JobEvent.REQUEUE and end is not None:
            values |= self._requeue(end)
        key: dict[str, Any] = {"row_id": self.job.id, "expected_state": self.job_state.value}
        statement = _CHANGE_JOB
        if self.job_state is self.job.state:
            statement, key = _CHANGE_SAME_JOB, key | {"expected_generation": self.job.generation}
        self.writes.add(statement, key | values, stale_message="the job has moved since it was read")
        self.is_touched = True
        if Effect.STAMP_STARTED in move.effects:
            self.writes.add(_START_JOB, {"row_id": self.job.id, "started_at": self.now})
        if end is not None and event is JobEvent.REQUEUE and end.is_counted:
            self._count_restarts(1)
        if end is not None and event is JobEvent.REQUEUE and self._preemption is not None:
            self.writes.add(_COUNT_PREEMPTION, {"row_id": self.job.id})
        self.job_state = move.state
        self._add_event(move.kind, reason, data={"attempt": self.attempt.number})
        return move.effects

    def _requeue(self, end: AttemptEnd) -> dict[str, Any]:
        values: dict[str, Any] = {"wait_reason": None, "not_before": None, "waiting_since": self.now}
        stop = self._preemption
        if stop is not None:
            values["preemption"] = {
                "code": stop.code,
                "sentence": stop.sentence,
                "for_job": stop.for_job,
                "at": stop.at.isoformat(),
            }
        if end.delay:
            at = self.now + end.delay
            values["not_before"] = at
            values["wait_reason"] = {
                "code": WaitReasonCode.BACKOFF.value,
                "sentence": (
                    f"starts again at {at:%H:%M:%S} UTC, {end.delay.total_seconds():g} s after it failed: "
                    f"{end.sentence}"
                ),
                "numbers": {"not_before": at.isoformat(), "delay_s": end.delay.total_seconds(), "failures": end.streak},
            }
        return values

    @property
    def _preemption(self) -> Stop | None:
        stop = self.attempt.stop
        return stop if stop is not None and stop.cause is StopCause.PREEMPT else None

    def _count_service(self, members: Iterable[GangMember], *, is_whole: bool = True) -> None:
        """Add the service of these replicas to the job's. ``is_whole``: they are all that is left of the attempt."""
        service = attained_service(self.rows, members, self.now)
        ran_s = 0.0
        if is_whole and self.attempt.started_at is not None:
            ended = [m.ended_at for m in self.rows.members if m.ended_at is not None]
            ran_s = max(0.0, (max(ended, default=self.now) - self.attempt.started_at).total_seconds())
        if service or ran_s:
            self.writes.add(_COUNT_SERVICE, {"row_id": self.job.id, "service": service, "ran": ran_s})

    def _attempt(self, **values: Any) -> None:
        """Change the attempt; even without values its row is locked and its generation compared."""
        key = {"row_id": self.attempt.id, "expected_generation": self.attempt.generation}
        self.writes.add(_CHANGE_ATTEMPT, key | values, stale_message="the attempt has moved since it was read")

    def _add_event(
        self, kind: str, reason: str, *, actor: str = SCHEDULER, data: Mapping[str, Any] | None = None
    ) -> None:
        """Add one event to the job's history. ``kind`` is noun.verb; ``reason`` is a sentence for users."""
        row = event_row(
            at=self.now,
            kind=kind,
            actor=actor,
            project_id=self.job.project_id,
            job_id=self.job.id,
            attempt_id=self.attempt.id,
            reason=reason,
            data=data,
        )
        self.writes.events.append(row)

    def _touch_job(self) -> None:
        """Clients that cache the job by its time of change must read it again."""
        if not self.is_touched:
            self.writes.add(_TOUCH_JOB, {"row_id": self.job.id, "updated_at": self.now})

    def _count_restarts(self, more: int) -> None:
        self.writes.add(_COUNT_RESTARTS, {"row_id": self.job.id, "more": more})


def _stamps(move: Move[JobState], now: datetime) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if Effect.STAMP_QUEUED in move.effects:
        values["queued_at"] = now
    if Effect.STAMP_FINISHED in move.effects:
        values["finished_at"] = now
    if Effect.CLEAR_WAIT in move.effects:
        values |= {"wait_reason": None, "not_before": None}
    if Effect.CLEAR_EXIT in move.effects:
        values["exit"] = None
    return values


def attained_service(rows: AttemptRows, members: Iterable[GangMember], now: datetime) -> float:
    """GPU-seconds of service that ``members`` have attained since they were last started.

    Of a gang without GPUs, the seconds of its longest running replica, for the gang as a whole: what replicas attained
    that end before the others is not counted then.
    """
    roles = rows.job.spec.roles
    gpus = {name: float(role.resources.gpus or 0) for name, role in roles.items()}
    found = [m for m in members if m.started_at is not None and m.holds_resources]
    lasted = [(m.role, max(0.0, ((m.ended_at or now) - m.started_at).total_seconds())) for m in found if m.started_at]
    if any(gpus.values()):
        return sum(gpus.get(role, 0.0) * seconds for role, seconds in lasted)
    if len(found) < len(rows.members):
        return 0.0
    return max((seconds for _, seconds in lasted), default=0.0)


def startup_status(members: Iterable[GangMember], observations: Sequence[Observation]) -> str:
    """The detail of the first replica, by rank, that waits for something; empty: none does."""
    shown = {(o.key.role, o.key.index, o.key.generation): o for o in observations}
    for member in members:
        observation = shown.get((member.role, member.index, member.generation))
        if observation is not None and observation.phase is Phase.PENDING and observation.detail:
            return f"{member.name}: {observation.detail}"[:_STATUS_CHARS]
        if observation is None and member.state is ReplicaState.PENDING and member.detail:
            return f"{member.name}: {member.detail}"[:_STATUS_CHARS]
    return ""


def write_startup_status(session: Session, rows: AttemptRows, sentence: str, now: datetime) -> None:
    """Write it at the job, unless it is there already. The caller has checked the lease in this transaction.

    The history gets an event for a new reason, not when only numbers in it change, as those of an image pull do.
    """
    job = rows.job
    current = session.execute(select(Job.wait_reason).where(Job.id == job.id)).scalar_one() or {}
    before = str(current.get("sentence", ""))
    if before == sentence:
        return
    session.execute(
        update(Job)
        .where(Job.id == job.id, Job.state == JobState.STARTING.value)
        .values(wait_reason={"code": _STARTING, "sentence": sentence, "numbers": {}}, updated_at=now)
        .execution_options(synchronize_session=False)
    )
    if _NUMBERS.sub("", before) != _NUMBERS.sub("", sentence):
        Journal(session, job.project_id, job.id, rows.attempt.id).add(
            "attempt.waiting", sentence, at=now, actor=EXECUTOR
        )
