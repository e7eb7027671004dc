"""What to do with one attempt now, from its snapshot. Pure: values in, values out.

Three steps, each over the result of the step before: observations become moves of replicas, the completion rules are
applied, and the actions for the executor are listed. Deciding again on the result yields nothing new.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final

from core.domain.errors import StaleWrite
from core.domain.jobs.exits import ExitCause, ExitFacts
from core.domain.jobs.lifecycle import ReplicaEvent
from core.domain.jobs.states import ReplicaState
from executors.base import Observation, Phase, ReplicaExit
from scheduler.control.attempts.attempt_snapshot import AttemptSnapshot, GangMember, stop_grace
from scheduler.control.attempts.completion_rules import apply_rules
from scheduler.control.attempts.decision import Decision, ReplicaNote
from scheduler.control.attempts.decision_draft import DecisionDraft
from scheduler.control.attempts.ending import attempt_end
from scheduler.control.attempts.worlds import has_left


def apply_observations(draft: DecisionDraft) -> None:
    for member in draft.snapshot.members:
        if member.is_over:
            continue
        observation = draft.snapshot.observed.get((member.role, member.index))
        if observation is not None and observation.key.generation > member.generation:
            raise StaleWrite(f"{member.name} has been started again by another process")
        if observation is not None and observation.key.generation < member.generation:
            observation = None  # the record of an earlier start
        _observe_member(draft, member, observation)


def _observe_member(draft: DecisionDraft, member: GangMember, observation: Observation | None) -> None:
    if member.node in draft.snapshot.lost_nodes and (observation is None or observation.exit is None):
        cause, what = ExitCause.NODE_LOST, "was lost"
        if member.node in draft.snapshot.draining_nodes:
            cause, what = ExitCause.MAINTENANCE, "was taken away while it was drained"
        facts = replace(
            draft.facts(member, cause, f"Node {member.node} of {member.name} {what}."),
            # Peers die of it before the node counts as lost: their exits are its consequence.
            at=draft.snapshot.lost_nodes[member.node],
        )
        draft.move(member, ReplicaEvent.LOSE, draft.now, facts)
        return
    if observation is None:
        if member.state is ReplicaState.PENDING:
            if member.id in draft.snapshot.refused:
                exit_ = draft.facts(member, ExitCause.ENGINE_REFUSED, draft.snapshot.refused[member.id])
                exit_ = replace(exit_, blames_node=False)  # every node would refuse it
                draft.move(member, ReplicaEvent.FAIL, draft.now, exit_)
        else:
            # The last detail of a running replica announced what was about to happen to it.
            _record_loss(draft, member, member.detail if member.state is ReplicaState.RUNNING else "")
        return
    _note(draft, member, observation)
    match observation.phase:
        case Phase.PENDING:
            if member.state is ReplicaState.PENDING:
                draft.move(member, ReplicaEvent.CREATE, draft.now)
        case Phase.RUNNING:
            _record_run(draft, member, observation)
        case Phase.SUCCEEDED | Phase.FAILED:
            _record_exit(draft, member, observation)
        case Phase.LOST:
            _record_loss(draft, member, observation.detail)


def _record_run(draft: DecisionDraft, member: GangMember, observation: Observation) -> None:
    if draft.members[member.id].state in (ReplicaState.PENDING, ReplicaState.STARTING):
        draft.move(member, ReplicaEvent.RUN, observation.started_at or draft.now)


def _record_exit(draft: DecisionDraft, member: GangMember, observation: Observation) -> None:
    exit_ = observation.exit or ReplicaExit(ExitCause.UNKNOWN, None, "", draft.now)
    facts = ExitFacts(member.name, member.role, exit_.cause, exit_.exit_code, exit_.at, exit_.sentence, exit_.log_tail)
    if (exit_.cause is ExitCause.STOPPED and draft.is_ending) or has_left(draft.snapshot, member):
        draft.move(member, ReplicaEvent.STOP, exit_.at, facts)
    elif observation.phase is Phase.SUCCEEDED:
        _record_run(draft, member, observation)  # it ended before it was observed running
        draft.move(member, ReplicaEvent.SUCCEED, exit_.at, facts)
    else:
        if observation.started_at is not None:
            _record_run(draft, member, observation)
        draft.move(member, ReplicaEvent.FAIL, exit_.at, facts)


def _record_loss(draft: DecisionDraft, member: GangMember, why: str) -> None:
    if draft.is_ending or has_left(draft.snapshot, member):
        draft.move(member, ReplicaEvent.STOP, draft.now)
    else:
        cause = ExitCause.UNKNOWN
        if member.node in draft.snapshot.draining_nodes:
            cause, why = ExitCause.MAINTENANCE, why or f"Node {member.node} of {member.name} was drained."
        draft.move(member, ReplicaEvent.LOSE, draft.now, draft.facts(member, cause, why))


def _note(draft: DecisionDraft, member: GangMember, observation: Observation) -> None:
    has_news = observation.detail != member.detail or (bool(observation.facts) and not member.has_facts)
    if has_news:
        draft.notes.append(ReplicaNote(member, observation.detail, dict(observation.facts)))


# Time after SIGKILL was due: then the executor is told to remove the rest.
KILL_SLACK: Final = timedelta(seconds=30)


def decide_attempt(snapshot: AttemptSnapshot) -> Decision:
    """What to record and to do now.

    Raises:
        StaleWrite: the executor shows a newer generation of a replica than the rows, which are outdated.
    """
    draft = DecisionDraft(snapshot)
    apply_observations(draft)
    apply_rules(draft)
    _plan_actions(draft)
    return draft.decision()


def _plan_actions(draft: DecisionDraft) -> None:
    live = [m for m in draft.members.values() if not m.is_over]
    if not live and draft.is_ending:
        draft.end = attempt_end(draft.snapshot, draft.world_members(), draft.stop, draft.now)
        return
    for member in live:
        if draft.must_stop(member):
            draft.stops.append(member)
        elif member.state is ReplicaState.PENDING:
            draft.creates.append(member)
    if draft.stop is not None and live:
        patience = draft.stop.at + stop_grace(draft.snapshot.job.spec, draft.stop) + KILL_SLACK
        if patience <= draft.now:
            # The engine does not end them: it is told to remove everything, and that is their end.
            for member in live:
                draft.move(member, ReplicaEvent.STOP, draft.now, reason="did not end in time and was removed")
            draft.stops.clear()
            draft.end = attempt_end(draft.snapshot, draft.world_members(), draft.stop, draft.now)
        else:
            draft.recheck_times.append(patience)
