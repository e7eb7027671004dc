"""What to do with one attempt now, from its snapshot. Pure: values in, values out.

Three steps, each over the result of the step before: observations become moves of replicas, the completion rules are
applied, and the actions for the executor are listed. Deciding again on the result yields nothing new.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from trainmaster.spec import RestartPolicy

from core.domain.errors import StaleWrite
from core.domain.jobs.exits import ExitCause, ExitFacts, ExitKind, classify
from core.domain.jobs.lifecycle import ReplicaEvent, advance
from core.domain.jobs.states import AttemptState, DesiredState, ReplicaState
from executors.base import Observation, Phase, ReplicaExit
from scheduler.control.attempts.attempt_snapshot import (
    EVALUATOR,
    PS_ROLES,
    AttemptSnapshot,
    CompletionRules,
    GangMember,
    Stop,
    StopCause,
    stop_grace,
)
from scheduler.control.attempts.backoff import restart_delay
from scheduler.control.attempts.decision import Decision, ReplicaMove, ReplicaNote
from scheduler.control.attempts.ending import AttemptEnd, attempt_end
from scheduler.control.attempts.worlds import (
    CREATE_CALL_TIMEOUT,
    WorldChange,
    has_left,
    is_in_world,
    join_deadline,
    members_to_update,
    next_world,
    outside_world,
    released_members,
    remnants,
    tolerates_loss,
)

# The runtime ends a replica at its deadline; after this slack the control plane does it.
DEADLINE_SLACK: Final = timedelta(seconds=15)
# Time after SIGKILL was due: then the executor is told to remove the rest.
KILL_SLACK: Final = timedelta(seconds=30)
# A gang whose replicas could not be started for this long gives its place back.
START_PATIENCE: Final = timedelta(minutes=10)
# The place is gone, so the replica cannot start there again: the whole gang is placed again.
_NODE_GONE: Final = frozenset({ExitCause.NODE_LOST, ExitCause.EVICTED, ExitCause.ENGINE_REFUSED})


def decide_attempt(snapshot: AttemptSnapshot) -> Decision:
    """What to record and to do now.

    Raises:
        StaleWrite: the executor shows a newer generation of a replica than the rows, which are outdated.
    """
    builder = _DecisionBuilder(snapshot)
    builder.apply_observations()
    builder.apply_rules()
    builder.plan_actions()
    return builder.decision()


class _DecisionBuilder:
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
            if self.world or self._is_ending
            else members_to_update(self.snapshot, self.members.values()),
            stops=tuple(self.stops),
            end=self.end,
            recheck_at=min(self.recheck_times, default=None),
        )

    # Observations

    def apply_observations(self) -> None:
        for member in self.snapshot.members:
            if member.is_over:
                continue
            seen = self.snapshot.observed.get((member.role, member.index))
            if seen is not None and seen.key.generation > member.generation:
                raise StaleWrite(f"{member.name} has been started again by another process")
            if seen is not None and seen.key.generation < member.generation:
                seen = None  # the record of an earlier start
            self._observe_member(member, seen)

    def _observe_member(self, member: GangMember, seen: Observation | None) -> None:
        if member.node in self.snapshot.lost_nodes and (seen is None or seen.exit is None):
            facts = replace(
                self._facts(member, ExitCause.NODE_LOST, f"Node {member.node} of {member.name} was lost."),
                # Peers die of it before the node counts as lost: their exits are its consequence.
                at=self.snapshot.lost_nodes[member.node],
            )
            self._move(member, ReplicaEvent.LOSE, self.now, facts)
            return
        if seen is None:
            if member.state is ReplicaState.PENDING:
                if member.id in self.snapshot.refused:
                    exit_ = self._facts(member, ExitCause.ENGINE_REFUSED, self.snapshot.refused[member.id])
                    exit_ = replace(exit_, blames_node=False)  # every node would refuse it
                    self._move(member, ReplicaEvent.FAIL, self.now, exit_)
            else:
                # The last detail of a running replica announced what was about to happen to it.
                self._vanished(member, member.detail if member.state is ReplicaState.RUNNING else "")
            return
        self._note(member, seen)
        match seen.phase:
            case Phase.PENDING:
                if member.state is ReplicaState.PENDING:
                    self._move(member, ReplicaEvent.CREATE, self.now)
            case Phase.RUNNING:
                self._ran(member, seen)
            case Phase.SUCCEEDED | Phase.FAILED:
                self._ended(member, seen)
            case Phase.LOST:
                self._vanished(member, seen.detail)

    def _ran(self, member: GangMember, seen: Observation) -> None:
        if self.members[member.id].state in (ReplicaState.PENDING, ReplicaState.STARTING):
            self._move(member, ReplicaEvent.RUN, seen.started_at or self.now)

    def _ended(self, member: GangMember, seen: Observation) -> None:
        exit_ = seen.exit or ReplicaExit(ExitCause.UNKNOWN, None, "", self.now)
        facts = ExitFacts(
            member.name, member.role, exit_.cause, exit_.exit_code, exit_.at, exit_.sentence, exit_.log_tail
        )
        if (exit_.cause is ExitCause.STOPPED and self._is_ending) or has_left(self.snapshot, member):
            self._move(member, ReplicaEvent.STOP, exit_.at, facts)
        elif seen.phase is Phase.SUCCEEDED:
            self._ran(member, seen)  # it ended before it was observed running
            self._move(member, ReplicaEvent.SUCCEED, exit_.at, facts)
        else:
            if seen.started_at is not None:
                self._ran(member, seen)
            self._move(member, ReplicaEvent.FAIL, exit_.at, facts)

    def _vanished(self, member: GangMember, why: str) -> None:
        if self._is_ending or has_left(self.snapshot, member):
            self._move(member, ReplicaEvent.STOP, self.now)
        else:
            self._move(member, ReplicaEvent.LOSE, self.now, self._facts(member, ExitCause.UNKNOWN, why))

    @property
    def _is_ending(self) -> bool:
        """Whether replicas were asked to stop: a vanished replica then has stopped, and is not lost."""
        return self.stop is not None or self.decided_at is not None

    # Rules

    def apply_rules(self) -> None:
        if self.stop is None:
            self._decide_success()
            self._decide_user_request()
            self._decide_failures()
            self._decide_joining()
            self._decide_world()
            self._decide_time()
        if self.stop is None and self.decided_at is None:
            self._decide_start()
        self._drop_uncreated()

    def _decide_success(self) -> None:
        deciders = [m for m in self._world_members() if m.role in self.rules.deciders]
        ignored = {role for role, policy in self.rules.policies.items() if policy is RestartPolicy.IGNORE}
        done = [m for m in deciders if m.state is ReplicaState.SUCCEEDED]
        ignored_failures = [
            m for m in deciders if m.role in ignored and m.state in (ReplicaState.FAILED, ReplicaState.LOST)
        ]
        if self.decided_at is None and done and len(done) + len(ignored_failures) == len(deciders):
            self.decided_at = self.now

    def _decide_user_request(self) -> None:
        wanted = self.snapshot.job.wanted
        if wanted is DesiredState.CANCEL:
            self._stop(StopCause.CANCEL, self.snapshot.user_request or "The job was cancelled.")
        elif wanted is DesiredState.PAUSE and self.decided_at is None:
            self._stop(StopCause.PAUSE, self.snapshot.user_request or "The job was paused.")

    def _decide_failures(self) -> None:
        if self.stop is not None or self.decided_at is not None:
            return
        if self.snapshot.refusal is not None:
            if self.snapshot.is_removed:
                self._stop(StopCause.REMOVED, self.snapshot.refusal)
            else:
                self._stop(StopCause.REFUSED, self.snapshot.refusal, is_final=True)
            return
        failed = [m for m in self._world_members() if m.state in (ReplicaState.FAILED, ReplicaState.LOST)]
        for member in sorted(failed, key=lambda m: (m.ended_at or self.now, m.name)):
            self._decide_failure(member)
            if self.stop is not None:
                return
        if self.losses:
            return  # whether enough replicas are left is decided with the next world
        deciders = [m for m in self._world_members() if m.role in self.rules.deciders]
        if all(
            m.is_over and m.id not in self.waiting for m in deciders
        ):  # and none succeeded: all are ignored failures
            self._stop(StopCause.FAILURE, "All replicas that decide the job's end failed.", is_final=True)

    def _decide_failure(self, member: GangMember) -> None:
        exit_ = member.exit or self._facts(member, ExitCause.UNKNOWN, "")
        verdict = classify(exit_)
        is_platform = verdict.kind is ExitKind.PLATFORM
        if exit_.cause is ExitCause.DEADLINE:
            self._stop(StopCause.DEADLINE, verdict.sentence, is_final=True)
            return
        if tolerates_loss(self.snapshot, self._world_members(), member):
            self._decide_loss(exit_)
            return
        match self.rules.policies[member.role]:
            case RestartPolicy.IGNORE:
                pass
            case RestartPolicy.NEVER:
                # A failure of the platform is not the replica's error.
                self._stop(StopCause.FAILURE, verdict.sentence, is_final=not is_platform)
            case RestartPolicy.GANG:
                self._stop(StopCause.FAILURE, verdict.sentence)
            case RestartPolicy.REPLICA:
                self._decide_restart(member, exit_)

    def _decide_loss(self, exit_: ExitFacts) -> None:
        """An elastic gang goes on without the lost replica, as often as it might be restarted."""
        verdict = classify(exit_)
        is_counted = verdict.kind is not ExitKind.PLATFORM and not verdict.is_consequence
        spent = self.snapshot.job.restart_count + self.counted_restarts
        if verdict.is_hopeless or (is_counted and spent >= self.snapshot.job.spec.max_restarts):
            self._stop(StopCause.FAILURE, verdict.sentence)
            return
        self.counted_restarts += is_counted
        self.losses.append(verdict.sentence)

    def _decide_joining(self) -> None:
        """A joining replica that never gets ready gives its place back; the others are not disturbed."""
        if self.stop is not None or self.decided_at is not None:
            return
        for member in tuple(self.members.values()):
            due = join_deadline(self.snapshot, member)
            if due is not None and due <= self.now:
                why = member.detail or "It did not get ready."
                sentence = f"{member.name} could not join for too long, and the others train on: {why}"
                exit_ = replace(self._facts(member, ExitCause.ENGINE_REFUSED, sentence), blames_node=False)
                self._move(member, ReplicaEvent.FAIL, self.now, exit_)
            elif due is not None:
                self.recheck_times.append(due)
        for member in outside_world(self.snapshot, self.members.values(), None):
            if (
                member.holds_resources
                and member.ended_at is not None
                and member.ended_at + CREATE_CALL_TIMEOUT > self.now
            ):
                self.recheck_times.append(member.ended_at + CREATE_CALL_TIMEOUT)

    def _decide_world(self) -> None:
        if self.stop is not None or self.decided_at is not None:
            return
        change = next_world(self.snapshot, tuple(self.members.values()), self.losses)
        if isinstance(change, str):
            self.counted_restarts = 0  # the end of the attempt is counted instead
            self._stop(StopCause.FAILURE, change)
        else:
            self.world = change

    def _decide_restart(self, member: GangMember, exit_: ExitFacts) -> None:
        """Restart this replica alone, or give up: an evaluator alone, any other role with the whole gang."""
        verdict = classify(exit_)
        is_counted = verdict.kind is not ExitKind.PLATFORM
        spent = self.snapshot.job.restart_count + self.counted_restarts
        is_node_lost = exit_.cause in _NODE_GONE
        if verdict.is_hopeless or (is_counted and spent >= self.snapshot.job.spec.max_restarts) or is_node_lost:
            if member.role != EVALUATOR:
                self._stop(StopCause.FAILURE, verdict.sentence, is_final=not is_node_lost)
            return
        due = (member.ended_at or self.now) + restart_delay(member.generation)
        if due > self.now:
            self.waiting.add(member.id)
            self.recheck_times.append(due)
            return
        self.counted_restarts += is_counted
        self._move(member, ReplicaEvent.RESTART, self.now, reason=verdict.sentence)

    def _decide_time(self) -> None:
        attempt, spec = self.snapshot.attempt, self.snapshot.job.spec
        if spec.max_run_time is None or attempt.started_at is None or self.stop or self.decided_at:
            return
        due = attempt.started_at + timedelta(seconds=spec.max_run_time) + DEADLINE_SLACK
        if due > self.now:
            self.recheck_times.append(due)
            return
        sentence = "max_run_time is over: raise it, or clone the job to go on from the last checkpoint."
        self._stop(StopCause.DEADLINE, sentence, is_final=True)

    def _decide_start(self) -> None:
        started = {ReplicaState.PENDING, ReplicaState.STARTING}
        waiting = [m for m in self._world_members() if m.state in started]
        if not waiting:
            self.is_running = self.snapshot.attempt.state is AttemptState.STARTING
            return
        stuck = [m for m in waiting if m.state is ReplicaState.PENDING and m.detail and m.generation == 1]
        due = self.snapshot.attempt.created_at + START_PATIENCE
        if stuck and due <= self.now:
            self._stop(StopCause.CAPACITY, f"{stuck[0].name} could not be started for 10 minutes: {stuck[0].detail}")

    def _drop_uncreated(self) -> None:
        for member in list(self.members.values()):
            if member.state is ReplicaState.PENDING and self._must_stop(member):
                self._move(member, ReplicaEvent.STOP, self.now)

    # Actions

    def plan_actions(self) -> None:
        live = [m for m in self.members.values() if not m.is_over]
        if not live and self._is_ending:
            self.end = attempt_end(self.snapshot, self._world_members(), self.stop, self.now)
            return
        for member in live:
            if self._must_stop(member):
                self.stops.append(member)
            elif member.state is ReplicaState.PENDING:
                self.creates.append(member)
        if self.stop is not None and live:
            patience = self.stop.at + stop_grace(self.snapshot.job.spec, self.stop) + KILL_SLACK
            if patience <= self.now:
                # The engine does not end them: it is told to remove everything, and that is their end.
                for member in live:
                    self._move(member, ReplicaEvent.STOP, self.now, reason="did not end in time and was removed")
                self.stops.clear()
                self.end = attempt_end(self.snapshot, self._world_members(), self.stop, self.now)
            else:
                self.recheck_times.append(patience)

    def _must_stop(self, member: GangMember) -> bool:
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

    # Helpers

    def _world_members(self) -> tuple[GangMember, ...]:
        """The members of the world: neither replicas that an elastic gang has lost, nor those that are still
        joining.
        """
        return tuple(m for m in self.members.values() if is_in_world(self.snapshot, m))

    def _stop(self, cause: StopCause, sentence: str, *, is_final: bool = False) -> None:
        if self.stop is None:
            self.stop = Stop(cause, sentence, self.now, is_final)

    def _move(
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

    def _note(self, member: GangMember, seen: Observation) -> None:
        has_news = seen.detail != member.detail or (bool(seen.facts) and not member.has_facts)
        if has_news:
            self.notes.append(ReplicaNote(member, seen.detail, dict(seen.facts)))

    def _facts(self, member: GangMember, cause: ExitCause, sentence: str) -> ExitFacts:
        return ExitFacts(member.name, member.role, cause, None, self.now, sentence)
