"""Writing what was decided about one attempt: compared, fenced, and told in the same transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Update, update
from sqlalchemy.orm import Session

from core.bell import TOPIC_TICK
from core.db.tables import Attempt, Job, Replica
from core.domain.errors import StaleWrite
from core.domain.exits import classify
from core.domain.layout import Layout
from core.domain.lifecycle import AttemptEvent, Effect, JobEvent, Move, ReplicaEvent, advance
from core.domain.states import JobState, ReplicaState
from scheduler.control.decide import Decision, Note, ReplicaMove, names
from scheduler.control.ending import End
from scheduler.control.environment import EnvironmentNote
from scheduler.control.facts import AttemptFacts, JobFacts, Member, Stop, StopCause
from scheduler.control.journal import EXECUTOR, Journal
from scheduler.control.rows import AttemptRows, exit_to_json
from scheduler.planning.model import ReasonCode

_DETAIL_CHARS: Final = 2000


class AttemptWriter:
    """Writes one transaction about one attempt. The caller has checked the lease in it."""

    def __init__(self, session: Session, rows: AttemptRows, now: datetime) -> None:
        self.session = session
        self.rows = rows
        self.now = now
        self.job: JobFacts = rows.job
        self.attempt: AttemptFacts = rows.attempt
        self.journal = Journal(session, self.job.project_id, self.job.id, self.attempt.id)
        self.job_state = self.job.state

    # Public: one of these per transaction

    def start(self, layout: Layout, resume_from: str | None, note: EnvironmentNote) -> None:
        """The attempt has its addresses: nothing was created before this is written."""
        move = advance(self.attempt.state, AttemptEvent.START)
        self._attempt(state=move.state.value, layout=layout.to_json(), resume_from=resume_from)
        self._touch_job()
        count = len(layout.replicas)
        reason = (
            f"Attempt {self.attempt.number}: {count} {'replica is' if count == 1 else 'replicas are'} being started"
        )
        reason += f", going on from {resume_from}." if resume_from else "."
        self.journal.tell(move.kind, reason, at=self.now, data={"number": self.attempt.number})
        if note:
            self.journal.tell("attempt.environment", note.sentence, at=self.now, data=note.to_json())

    def record(self, decision: Decision) -> None:
        """Everything of ``decision`` but its end."""
        changes: dict[str, Any] = {}
        if decision.stop is not None:
            changes["stop"] = decision.stop.to_json()
        if decision.is_decided:
            changes["decided_at"] = self.now
        if decision.is_running:
            changes |= self._run(decision)
        self._attempt(**changes)
        self._moves(decision.moves)
        self._notes(decision.notes)
        if decision.is_running:
            self._job(JobEvent.RUN, "All replicas run." if len(self.rows.members) > 1 else "The command runs.")
        if decision.stop is not None:
            self._stopping(decision.stop)
        if decision.counted_restarts:
            self.session.execute(
                update(Job)
                .where(Job.id == self.job.id)
                .values(restart_count=Job.restart_count + decision.counted_restarts)
            )
        self._touch_job()

    def created(self, members: Sequence[Member], details: Mapping[str, str]) -> None:
        """``members`` were taken by the executor; ``details``: replica id -> why it was not."""
        self._attempt()
        for member in members:
            move = advance(member.state, ReplicaEvent.CREATE)
            self._replica(member, state=move.state.value, detail="")
        for replica_id, detail in details.items():
            self.session.execute(
                update(Replica)
                .where(Replica.id == replica_id, Replica.state == ReplicaState.PENDING.value)
                .values(detail=detail[:_DETAIL_CHARS])
            )
        if members:
            nodes = sorted({member.node for member in members})
            where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
            self._tell_replicas("replica.starting", members, f"{names(members)} handed to {where}.", actor=EXECUTOR)
        self._touch_job()

    def end(self, end: End, leftovers: Sequence[str] = ()) -> list[tuple[str, str]]:
        """The attempt is over and nothing of it is left but ``leftovers``, in words: what the engine could not end.

        Returns the bells to ring after the commit.
        """
        for sentence in leftovers:
            self.journal.tell("replica.given_up", sentence, at=self.now, actor=EXECUTOR)
        move = advance(self.attempt.state, AttemptEvent.END)
        self._attempt(
            state=move.state.value,
            end=end.to_json(),
            is_counted=end.is_counted,
            ended_at=self.now,
            swept_at=self.now,
        )
        if end.event is JobEvent.CONFIRM_CANCEL and self.job_state is not JobState.CANCELLING:
            self._job(JobEvent.CANCEL, end.sentence)
        effects = self._job(end.event, self._end_reason(end), end)
        return [(TOPIC_TICK, "")] if Effect.RING_TICK in effects | move.effects else []

    # The parts

    def _run(self, decision: Decision) -> dict[str, Any]:
        move = advance(self.attempt.state, AttemptEvent.RUN)
        ran = [m.at for m in decision.moves if m.event is ReplicaEvent.RUN]
        ran += [m.started_at for m in self.rows.members if m.started_at is not None]
        return {"state": move.state.value, "started_at": min(max(ran, default=self.now), self.now)}

    def _stopping(self, stop: Stop) -> None:
        self.journal.tell("attempt.stopping", stop.sentence, at=self.now, data={"cause": stop.cause.value})
        if stop.cause is StopCause.CANCEL and self.job_state is not JobState.CANCELLING:
            self._job(JobEvent.CANCEL, stop.sentence)

    def _end_reason(self, end: End) -> str:
        if end.event is not JobEvent.REQUEUE:
            return end.sentence
        when = f"in {end.delay.total_seconds():g} s" if end.delay else "at once"
        return f"{end.sentence} Attempt {self.attempt.number + 1} starts {when}."

    def _job(self, event: JobEvent, reason: str, end: End | None = None) -> frozenset[Effect]:
        """Move the job. Compared with its generation: a user may have asked for something else meanwhile."""
        move = advance(self.job_state, event)
        values: dict[str, Any] = {
            "state": move.state.value,
            "generation": Job.generation + 1,
            "updated_at": self.now,
            **_stamps(move, self.now),
        }
        if end is not None and move.state.is_terminal:
            values["exit"] = end.to_json()
        if event is JobEvent.REQUEUE and end is not None:
            values |= self._requeue(end)
        expected = Job.state == self.job_state.value
        if self.job_state is self.job.state:
            expected = expected & (Job.generation == self.job.generation)
        _changed(self.session, update(Job).where(Job.id == self.job.id, expected).values(**values), "the job")
        if Effect.STAMP_STARTED in move.effects:
            self.session.execute(
                update(Job).where(Job.id == self.job.id, Job.started_at.is_(None)).values(started_at=self.now)
            )
        self.job_state = move.state
        self.journal.tell(move.kind, reason, at=self.now, data={"attempt": self.attempt.number})
        return move.effects

    def _requeue(self, end: End) -> dict[str, Any]:
        values: dict[str, Any] = {"wait_reason": None, "not_before": None}
        if end.is_counted:
            values["restart_count"] = Job.restart_count + 1
        if end.delay:
            at = self.now + end.delay
            values["not_before"] = at
            values["wait_reason"] = {
                "code": ReasonCode.BACKOFF.value,
                "sentence": f"starts again at {at:%H:%M:%S} UTC, {end.delay.total_seconds():g} s after it failed: {end.sentence}",
                "numbers": {"not_before": at.isoformat(), "delay_s": end.delay.total_seconds(), "failures": end.streak},
            }
        return values

    def _attempt(self, **values: Any) -> None:
        """Change the attempt; even without values it is locked and its generation compared."""
        statement = (
            update(Attempt)
            .where(Attempt.id == self.attempt.id, Attempt.generation == self.attempt.generation)
            .values(generation=Attempt.generation + 1, **values)
        )
        _changed(self.session, statement, "the attempt")

    def _moves(self, moves: Iterable[ReplicaMove]) -> None:
        told: defaultdict[ReplicaEvent, list[ReplicaMove]] = defaultdict(list)
        for item in moves:
            self._replica_move(item)
            told[item.event].append(item)
        for event, group in told.items():
            kind = advance(group[0].member.state, event).kind
            members = [item.member for item in group]
            reasons = [_move_reason(item) for item in group]
            if event in (ReplicaEvent.FAIL, ReplicaEvent.LOSE, ReplicaEvent.RESTART):
                for member, reason in zip(members, reasons, strict=True):
                    self._tell_replicas(kind, [member], reason, actor=EXECUTOR)
            else:
                self._tell_replicas(kind, members, f"{names(members)} {_WORDS[event]}.", actor=EXECUTOR)

    def _replica_move(self, item: ReplicaMove) -> None:
        move = advance(item.member.state, item.event)
        values: dict[str, Any] = {"state": move.state.value}
        if Effect.STAMP_STARTED in move.effects:
            values["started_at"] = item.at
        if Effect.STAMP_FINISHED in move.effects:
            values["ended_at"] = item.at
        if item.exit is not None:
            verdict = classify(item.exit)
            values["exit"] = exit_to_json(item.exit, verdict.kind.value, verdict.sentence)
        if item.event is ReplicaEvent.RESTART:
            values |= {
                "generation": Replica.generation + 1,
                "exit": None,
                "started_at": None,
                "ended_at": None,
                "detail": "",
                "facts": {},
                "report_seq": 0,
            }
        self._replica(item.member, **values)

    def _replica(self, member: Member, **values: Any) -> None:
        statement = (
            update(Replica)
            .where(
                Replica.id == member.id,
                Replica.generation == member.generation,
                Replica.state == member.state.value,
            )
            .values(**values)
        )
        _changed(self.session, statement, member.name)

    def _notes(self, notes: Iterable[Note]) -> None:
        for note in notes:
            values: dict[str, Any] = {"detail": note.detail[:_DETAIL_CHARS]}
            if note.facts:
                values["facts"] = note.facts
            self.session.execute(update(Replica).where(Replica.id == note.member.id).values(**values))

    def _tell_replicas(self, kind: str, members: Sequence[Member], reason: str, *, actor: str) -> None:
        listed = [member.name for member in members[:100]]
        self.journal.tell(kind, reason, at=self.now, actor=actor, data={"replicas": listed, "count": len(members)})

    def _touch_job(self) -> None:
        """Whoever caches the job by its time of change must look again."""
        self.session.execute(update(Job).where(Job.id == self.job.id).values(updated_at=self.now))


_WORDS: Final = {
    ReplicaEvent.CREATE: "handed over",
    ReplicaEvent.RUN: "running",
    ReplicaEvent.SUCCEED: "finished",
    ReplicaEvent.STOP: "stopped",
}


def _move_reason(item: ReplicaMove) -> str:
    if item.event is ReplicaEvent.RESTART:
        return f"{item.member.name} starts again, the others go on. {item.reason}".strip()
    if item.exit is not None:
        return classify(item.exit).sentence
    return item.reason or f"{item.member.name} {item.event.value}."


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


def _changed(session: Session, statement: Update, what: str) -> None:
    hit = session.execute(statement.execution_options(synchronize_session=False))
    if hit.rowcount != 1:  # type: ignore[attr-defined]
        raise StaleWrite(f"{what} has moved since it was read")
