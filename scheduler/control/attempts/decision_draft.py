"""The decision about one attempt while it is built: the three steps of `decide.py` write into it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from core.domain.jobs.exits import ExitCause, ExitFacts
from core.domain.jobs.lifecycle import ReplicaEvent, advance
from scheduler.control.attempts.attempt_snapshot import (
    EVALUATOR,
    PS_ROLES,
    AttemptSnapshot,
    CompletionRules,
    GangMember,
    Stop,
    StopCause,
)
from scheduler.control.attempts.decision import Decision, ReplicaMove, ReplicaNote
from scheduler.control.attempts.ending import AttemptEnd
from scheduler.control.attempts.worlds import (
    WorldChange,
    has_left,
    is_in_world,
    members_to_update,
    released_members,
    remnants,
)


class DecisionDraft:
    """The decision while it is built; ``members`` are as they will be after ``moves``."""

    def __init__(self, snapshot: AttemptSnapshot) -> None:
        self.snapshot = snapshot
        self.now = snapshot.now
        self.rules = CompletionRules.of(snapshot.job.spec)
        self.members = {member.id: member for member in snapshot.members}
        self.moves: list[ReplicaMove] = []
        self.notes: list[ReplicaNote] = []
        self.stop: Stop | None = snapshot.attempt.stop
        self.decided_at = snapshot.attempt.decided_at
        self.is_running = False
        self.counted_restarts = 0
        self.world: WorldChange | None = None
        self.losses: list[str] = []  # a sentence for each replica that an elastic gang has just lost
        self.waiting: set[str] = set()  # ids of failed replicas whose restart is not due yet
        self.creates: list[GangMember] = []
        self.stops: list[GangMember] = []
        self.end: AttemptEnd | None = None
        self.recheck_times: list[datetime] = []

    def decision(self) -> Decision:
        attempt = self.snapshot.attempt
        return Decision(
            moves=tuple(self.moves),
            notes=tuple(self.notes),
            stop=self.stop if attempt.stop is None else None,
            is_decided=self.decided_at is not None and attempt.decided_at is None,
            is_running=self.is_running,
            counted_restarts=self.counted_restarts,
            world=self.world,
            releases=() if self.stop else released_members(self.snapshot, self.members.values(), self.world),
            discards=() if self.stop else remnants(self.snapshot, self.members.values(), self.world),
            creates=tuple(self.creates),
            world_updates=()
            if self.world or self.is_ending
            else members_to_update(self.snapshot, self.members.values()),
            stops=tuple(self.stops),
            end=self.end,
            recheck_at=min(self.recheck_times, default=None),
        )

    @property
    def is_ending(self) -> bool:
        """Whether replicas were asked to stop: a vanished replica then has stopped, and is not lost."""
        return self.stop is not None or self.decided_at is not None

    def world_members(self) -> tuple[GangMember, ...]:
        """The members of the world: neither replicas that an elastic gang has lost, nor those that are still
        joining.
        """
        return tuple(m for m in self.members.values() if is_in_world(self.snapshot, m))

    def must_stop(self, member: GangMember) -> bool:
        """Whether ``member`` has to end now; if it has to end later, that time is noted."""
        if self.stop is not None:
            return True
        if has_left(self.snapshot, member):
            return True
        if self.decided_at is None:
            return False
        if member.role in PS_ROLES or not is_in_world(self.snapshot, member):
            return True
        # Workers next to a chief and the user's own roles may still be writing when the deciding roles are done.
        waits = self.snapshot.job.spec.grace
        grace = timedelta(seconds=waits.evaluator if member.role == EVALUATOR else waits.exit)
        if self.decided_at + grace > self.now:
            self.recheck_times.append(self.decided_at + grace)
            return False
        return True

    def request_stop(self, cause: StopCause, sentence: str, *, is_final: bool = False) -> None:
        if self.stop is None:
            self.stop = Stop(cause, sentence, self.now, is_final)

    def move(
        self,
        member: GangMember,
        event: ReplicaEvent,
        at: datetime,
        exit_: ExitFacts | None = None,
        *,
        reason: str = "",
    ) -> None:
        current = self.members[member.id]
        state = advance(current.state, event).state
        self.moves.append(ReplicaMove(current, event, at, reason, exit_))
        self.members[member.id] = replace(
            current,
            state=state,
            generation=current.generation + (event is ReplicaEvent.RESTART),
            exit=None if event is ReplicaEvent.RESTART else exit_ or current.exit,
            started_at=at if event is ReplicaEvent.RUN else current.started_at,
            ended_at=at if state.is_terminal else None,
            detail="" if event is ReplicaEvent.RESTART else current.detail,
        )

    def facts(self, member: GangMember, cause: ExitCause, sentence: str) -> ExitFacts:
        return ExitFacts(member.name, member.role, cause, None, self.now, sentence)
