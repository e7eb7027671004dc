"""Second step of a decision: the rules that end, restart or go on with an attempt."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final

from trainmaster.spec import RestartPolicy

from core.domain.jobs.exits import ExitCause, ExitFacts, ExitKind, classify, is_disk_full
from core.domain.jobs.lifecycle import ReplicaEvent
from core.domain.jobs.states import AttemptState, DesiredState, ReplicaState
from core.domain.jobs.tracebacks import exception_at_end
from scheduler.control.attempts.attempt_snapshot import EVALUATOR, GangMember, StopCause
from scheduler.control.attempts.backoff import restart_delay
from scheduler.control.attempts.decision_draft import DecisionDraft
from scheduler.control.attempts.worlds import (
    CREATE_CALL_TIMEOUT,
    join_deadline,
    next_world,
    outside_world,
    tolerates_loss,
)

# The runtime ends a replica at its deadline; after this slack the control plane does it.
DEADLINE_SLACK: Final = timedelta(seconds=15)
# A gang whose replicas could not be started for this long gives its place back.
START_PATIENCE: Final = timedelta(minutes=10)
# Ranks of a world end within seconds of each other; a gang that waits for a dead process is ended within a minute.
HIDDEN_FAILURE_WAIT: Final = timedelta(seconds=30)
# The place is gone or cannot be used, so the replica cannot start there again: the whole gang is placed again.
_NODE_LOST: Final = frozenset(
    {
        ExitCause.NODE_LOST,
        ExitCause.EVICTED,
        ExitCause.MAINTENANCE,
        ExitCause.ENGINE_REFUSED,
        ExitCause.IMAGE_UNREACHABLE,
    }
)


def apply_rules(draft: DecisionDraft) -> None:
    if draft.stop is None:
        _decide_success(draft)
        _decide_user_request(draft)
        _decide_evictions(draft)
        _decide_failures(draft)
        _decide_hidden_failures(draft)
        _decide_joining(draft)
        _decide_world(draft)
        _decide_time(draft)
    if draft.stop is None and draft.decided_at is None:
        _decide_start(draft)
    _drop_uncreated(draft)


def _decide_success(draft: DecisionDraft) -> None:
    deciders = [m for m in draft.world_members() if m.role in draft.rules.deciders]
    ignored = {role for role, policy in draft.rules.policies.items() if policy is RestartPolicy.IGNORE}
    succeeded = [m for m in deciders if m.state is ReplicaState.SUCCEEDED]
    ignored_failures = [
        m for m in deciders if m.role in ignored and m.state in (ReplicaState.FAILED, ReplicaState.LOST)
    ]
    if draft.decided_at is None and succeeded and len(succeeded) + len(ignored_failures) == len(deciders):
        draft.decided_at = draft.now


def _decide_user_request(draft: DecisionDraft) -> None:
    desired = draft.snapshot.job.wanted
    if desired is DesiredState.CANCEL:
        draft.request_stop(StopCause.CANCEL, draft.snapshot.user_request or "The job was cancelled.")
    elif desired is DesiredState.PAUSE and draft.decided_at is None:
        draft.request_stop(StopCause.PAUSE, draft.snapshot.user_request or "The job was paused.")


def _decide_failures(draft: DecisionDraft) -> None:
    if draft.stop is not None or draft.decided_at is not None:
        return
    if draft.snapshot.refusal is not None:
        if draft.snapshot.is_removed:
            draft.request_stop(StopCause.REMOVED, draft.snapshot.refusal)
        elif draft.snapshot.is_volume_full:
            draft.request_stop(StopCause.VOLUME_FULL, draft.snapshot.refusal)
        else:
            draft.request_stop(StopCause.REFUSED, draft.snapshot.refusal, is_final=True)
        return
    failed = [m for m in draft.world_members() if m.state in (ReplicaState.FAILED, ReplicaState.LOST)]
    for member in sorted(failed, key=lambda m: (m.ended_at or draft.now, m.name)):
        _decide_failure(draft, member)
        if draft.stop is not None:
            return
    if draft.losses:
        return  # whether enough replicas are left is decided with the next world
    deciders = [m for m in draft.world_members() if m.role in draft.rules.deciders]
    if all(m.is_over and m.id not in draft.waiting for m in deciders):  # and none succeeded: all are ignored failures
        draft.request_stop(StopCause.FAILURE, "All replicas that decide the job's end failed.", is_final=True)


def _decide_failure(draft: DecisionDraft, member: GangMember) -> None:
    exit_ = member.exit or draft.facts(member, ExitCause.UNKNOWN, "")
    verdict = classify(exit_)
    is_platform = verdict.kind is ExitKind.PLATFORM
    if exit_.cause is ExitCause.DEADLINE:
        draft.request_stop(StopCause.DEADLINE, verdict.sentence, is_final=True)
        return
    if tolerates_loss(draft.snapshot, draft.world_members(), member):
        _decide_loss(draft, exit_)
        return
    match draft.rules.policies[member.role]:
        case RestartPolicy.IGNORE:
            pass
        case RestartPolicy.NEVER:
            # A failure of the platform is not the replica's error.
            draft.request_stop(StopCause.FAILURE, verdict.sentence, is_final=not is_platform)
        case RestartPolicy.GANG:
            draft.request_stop(StopCause.FAILURE, verdict.sentence)
        case RestartPolicy.REPLICA:
            _decide_restart(draft, member, exit_)


def _decide_evictions(draft: DecisionDraft) -> None:
    """The engine ends a replica soon, as in a drain: the whole gang saves a checkpoint now, before its peers fail."""
    if draft.stop is not None or draft.decided_at is not None:
        return
    for member in draft.world_members():
        observation = draft.snapshot.observed.get((member.role, member.index))
        is_current = observation is not None and observation.key.generation == member.generation
        if observation is None or not is_current or not observation.eviction or member.is_over:
            continue
        is_vital = draft.rules.policies[member.role] is not RestartPolicy.IGNORE and member.role != EVALUATOR
        if is_vital and not tolerates_loss(draft.snapshot, draft.world_members(), member):
            draft.request_stop(StopCause.MAINTENANCE, observation.eviction)
            return


def _decide_hidden_failures(draft: DecisionDraft) -> None:
    """A replica whose last words are a traceback, although its command (``python train.py | tee log``) says success:
    where its gang still runs after a while, the gang waits for a process that is dead.
    """
    if draft.stop is not None or draft.decided_at is not None:
        return
    deciders = [m for m in draft.world_members() if m.role in draft.rules.deciders]
    for member in deciders:
        if member.state is not ReplicaState.SUCCEEDED or member.exit is None or member.ended_at is None:
            continue
        error = exception_at_end(member.exit.log_tail)
        if error is None:
            continue
        due = member.ended_at + HIDDEN_FAILURE_WAIT
        if due > draft.now:
            draft.recheck_times.append(due)
            continue
        sentence = (
            f"{member.name} ended with exit code 0, but its last lines are a traceback ({error[:200]}), and the others "
            "wait for it; let the command end with the program's exit code, such as by `set -e -o pipefail`."
        )
        draft.request_stop(StopCause.REFUSED, sentence, is_final=True)
        return


def _decide_loss(draft: DecisionDraft, exit_: ExitFacts) -> None:
    """An elastic gang goes on without the lost replica, as often as it might be restarted."""
    verdict = classify(exit_)
    is_counted = verdict.kind is not ExitKind.PLATFORM and not verdict.is_consequence
    restarts = draft.snapshot.job.restart_count + draft.counted_restarts
    is_exhausted = is_counted and restarts >= draft.snapshot.job.spec.max_restarts
    if verdict.is_hopeless or is_exhausted or is_disk_full(exit_, verdict):
        draft.request_stop(StopCause.FAILURE, verdict.sentence)
        return
    draft.counted_restarts += is_counted
    draft.losses.append(verdict.sentence)


def _decide_joining(draft: DecisionDraft) -> None:
    """A joining replica that never gets ready gives its place back; the others are not disturbed."""
    if draft.stop is not None or draft.decided_at is not None:
        return
    for member in tuple(draft.members.values()):
        due = join_deadline(draft.snapshot, member)
        if due is not None and due <= draft.now:
            why = member.detail or "It did not get ready."
            sentence = f"{member.name} could not join for too long, and the others train on: {why}"
            exit_ = replace(draft.facts(member, ExitCause.ENGINE_REFUSED, sentence), blames_node=False)
            draft.move(member, ReplicaEvent.FAIL, draft.now, exit_)
        elif due is not None:
            draft.recheck_times.append(due)
    for member in outside_world(draft.snapshot, draft.members.values(), None):
        if member.holds_resources and member.ended_at is not None and member.ended_at + CREATE_CALL_TIMEOUT > draft.now:
            draft.recheck_times.append(member.ended_at + CREATE_CALL_TIMEOUT)


def _decide_world(draft: DecisionDraft) -> None:
    if draft.stop is not None or draft.decided_at is not None:
        return
    change = next_world(draft.snapshot, tuple(draft.members.values()), draft.losses)
    if isinstance(change, str):
        draft.counted_restarts = 0  # the end of the attempt is counted instead
        draft.request_stop(StopCause.FAILURE, change)
    else:
        draft.world = change


def _decide_restart(draft: DecisionDraft, member: GangMember, exit_: ExitFacts) -> None:
    """Restart this replica alone, or give up: an evaluator alone, any other role with the whole gang."""
    verdict = classify(exit_)
    is_counted = verdict.kind is not ExitKind.PLATFORM
    restarts = draft.snapshot.job.restart_count + draft.counted_restarts
    if is_disk_full(exit_, verdict) and member.role != EVALUATOR:
        draft.request_stop(StopCause.FAILURE, verdict.sentence)  # whether it is the output volume is decided at the end
        return
    is_node_lost = exit_.cause in _NODE_LOST
    if verdict.is_hopeless or (is_counted and restarts >= draft.snapshot.job.spec.max_restarts) or is_node_lost:
        if member.role != EVALUATOR:
            draft.request_stop(StopCause.FAILURE, verdict.sentence, is_final=not is_node_lost)
        return
    due = (member.ended_at or draft.now) + restart_delay(member.generation)
    if due > draft.now:
        draft.waiting.add(member.id)
        draft.recheck_times.append(due)
        return
    draft.counted_restarts += is_counted
    draft.move(member, ReplicaEvent.RESTART, draft.now, reason=verdict.sentence)


def _decide_time(draft: DecisionDraft) -> None:
    attempt, spec = draft.snapshot.attempt, draft.snapshot.job.spec
    if spec.max_run_time is None or attempt.started_at is None or draft.stop or draft.decided_at:
        return
    due = attempt.started_at + timedelta(seconds=spec.max_run_time) + DEADLINE_SLACK
    if due > draft.now:
        draft.recheck_times.append(due)
        return
    sentence = "max_run_time is over: raise it, or clone the job to go on from the last checkpoint."
    draft.request_stop(StopCause.DEADLINE, sentence, is_final=True)


def _decide_start(draft: DecisionDraft) -> None:
    waiting = [m for m in draft.world_members() if m.state in (ReplicaState.PENDING, ReplicaState.STARTING)]
    if not waiting:
        draft.is_running = draft.snapshot.attempt.state is AttemptState.STARTING
        return
    unstarted = [m for m in waiting if m.state is ReplicaState.PENDING and m.detail and m.generation == 1]
    due = draft.snapshot.attempt.created_at + START_PATIENCE
    if unstarted and due <= draft.now:
        draft.request_stop(
            StopCause.CAPACITY, f"{unstarted[0].name} could not be started for 10 minutes: {unstarted[0].detail}"
        )


def _drop_uncreated(draft: DecisionDraft) -> None:
    for member in list(draft.members.values()):
        if member.state is ReplicaState.PENDING and draft.must_stop(member):
            draft.move(member, ReplicaEvent.STOP, draft.now)
