"""What the end of an attempt means for its job: it is over, requeued, paused or cancelled. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from trainmaster.spec import Contract

from core.domain.jobs.exits import (
    ExitCause,
    ExitFacts,
    ExitKind,
    ExitVerdict,
    classify,
    for_server,
    is_disk_full,
    is_retryable,
    root_cause,
    success_note,
)
from core.domain.jobs.lifecycle import JobEvent
from core.domain.jobs.states import DesiredState, JobState, ReplicaState
from scheduler.control.attempts.attempt_snapshot import AttemptSnapshot, CompletionRules, GangMember, Stop, StopCause
from scheduler.control.attempts.backoff import infrastructure_delay, restart_delay

# An attempt that trained this long has made progress, even without a reported step.
PROGRESS_TIME: Final = timedelta(minutes=1)
# Failures of the platform are not counted as restarts. But a job that is lost this often in a row without progress is
# itself the cause (it crashes its node), or the platform needs an administrator.
PLATFORM_STREAK_LIMIT: Final = 20


# The table of nodes shows a cordon within this time; before, the gang could be placed on the same node again.
_NODES_SYNC: Final = timedelta(seconds=6)
# The signature of ends for a full output volume. They are the infrastructure's: the job waits for room.
_VOLUME_FULL: Final = "volume_full"


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt. ``event`` is the job's move, ``delay`` the wait before the next attempt.

    ``last_step``: last reported step; 0 if a checkpoint or the run time already proves progress.
    """

    event: JobEvent
    kind: ExitKind
    sentence: str
    exit_code: int | None = None
    role: str | None = None
    index: int | None = None
    is_counted: bool = False
    signature: str = ""
    has_progressed: bool = False
    streak: int = 1
    last_step: int = 0
    delay: timedelta = timedelta()

    def to_json(self) -> dict[str, Any]:
        """As stored in ``attempts.end`` and ``jobs.exit``; the wire's ``ExitView`` is a part of it."""
        return {
            "kind": self.kind.value,
            "sentence": self.sentence,
            "exit_code": self.exit_code,
            "role": self.role,
            "index": self.index,
            "signature": self.signature,
            "has_progressed": self.has_progressed,
            "streak": self.streak,
            "last_step": self.last_step,
        }


def attempt_end(
    snapshot: AttemptSnapshot, members: tuple[GangMember, ...], stop: Stop | None, now: datetime
) -> AttemptEnd:
    """The end of an attempt whose replicas are all gone.

    Args:
        stop: why the platform ended it; ``None`` when its deciding roles succeeded.
    """
    is_cancelled = snapshot.job.wanted is DesiredState.CANCEL or snapshot.job.state is JobState.CANCELLING
    if is_cancelled:
        return AttemptEnd(
            JobEvent.CONFIRM_CANCEL, ExitKind.CANCELLED, snapshot.user_request or "The job was cancelled."
        )
    progressed = has_progressed(snapshot, members, now)
    if stop is None:
        return AttemptEnd(
            JobEvent.SUCCEED, ExitKind.SUCCESS, _success_sentence(snapshot, members), exit_code=0, has_progressed=True
        )
    cause = stop.cause
    match cause:
        case StopCause.CANCEL:
            return AttemptEnd(JobEvent.CONFIRM_CANCEL, ExitKind.CANCELLED, stop.sentence)
        case StopCause.PAUSE:
            event = JobEvent.PAUSE if snapshot.job.wanted is DesiredState.PAUSE else JobEvent.REQUEUE
            return AttemptEnd(event, ExitKind.CANCELLED, stop.sentence, has_progressed=progressed, streak=0)
        case StopCause.PREEMPT:
            # Neither the job's fault nor a failure: it is requeued at once, and nothing is counted.
            event = JobEvent.PAUSE if snapshot.job.wanted is DesiredState.PAUSE else JobEvent.REQUEUE
            return AttemptEnd(event, ExitKind.PLATFORM, stop.sentence, has_progressed=True, streak=0)
        case StopCause.DEADLINE:
            return AttemptEnd(JobEvent.EXPIRE, ExitKind.DEADLINE, stop.sentence, has_progressed=progressed)
        case StopCause.REFUSED:
            return AttemptEnd(JobEvent.FAIL, ExitKind.USER_ERROR, stop.sentence, has_progressed=progressed)
        case StopCause.CAPACITY | StopCause.REMOVED | StopCause.MAINTENANCE:
            kind = ExitKind.CAPACITY if cause is StopCause.CAPACITY else ExitKind.PLATFORM
            verdict = ExitVerdict(kind, stop.sentence, cause.value)
            return _end_after_failure(snapshot, verdict, None, progressed=progressed, is_final=False, is_platform=True)
        case StopCause.VOLUME_FULL:
            verdict = ExitVerdict(ExitKind.CAPACITY, stop.sentence, _VOLUME_FULL)
            return _end_after_failure(snapshot, verdict, None, progressed=progressed, is_final=False, is_platform=True)
        case StopCause.FAILURE:
            culprit = root_cause([m.exit for m in members if m.exit is not None and _is_failure(m)])
            verdict = classify(culprit) if culprit else ExitVerdict(ExitKind.PLATFORM, stop.sentence, "unknown")
            if snapshot.job.spec.contract is Contract.SERVING:
                verdict = for_server(verdict)
            verdict = _with_volume(snapshot, verdict, culprit)
            return _end_after_failure(
                snapshot,
                verdict,
                culprit,
                progressed=progressed,
                last_step=0 if _has_work(snapshot, members, now) else _last_step(members),
                is_final=stop.is_final and verdict.signature != _VOLUME_FULL,
                is_platform=verdict.kind is ExitKind.PLATFORM or verdict.signature == _VOLUME_FULL,
            )


def _with_volume(snapshot: AttemptSnapshot, verdict: ExitVerdict, culprit: ExitFacts | None) -> ExitVerdict:
    """A full disk is the output volume's, unless that has room: then it was another one, such as the container's own
    ``/tmp``, and the program is to change.
    """
    if culprit is None or not is_disk_full(culprit, verdict):
        return verdict
    room = snapshot.output_room
    if room is not None and not room.is_short:
        return verdict
    note = "" if room is None else f" ({room})"
    sentence = f"The output volume {snapshot.job.output_volume} has no room{note}: {verdict.sentence}"
    return replace(verdict, sentence=sentence, signature=_VOLUME_FULL)


def has_progressed(snapshot: AttemptSnapshot, members: tuple[GangMember, ...], now: datetime) -> bool:
    """Whether the attempt made progress: a step, a checkpoint, or a minute of run time."""
    return _has_work(snapshot, members, now) or _last_step(members) > 0


def _has_work(snapshot: AttemptSnapshot, members: tuple[GangMember, ...], now: datetime) -> bool:
    longest = max(((m.ended_at or now) - m.started_at for m in members if m.started_at), default=timedelta())
    return snapshot.has_checkpoint or longest >= PROGRESS_TIME


def _last_step(members: tuple[GangMember, ...]) -> int:
    return max((member.step for member in members), default=0)


def _end_after_failure(
    snapshot: AttemptSnapshot,
    verdict: ExitVerdict,
    culprit: ExitFacts | None,
    *,
    progressed: bool,
    is_final: bool,
    is_platform: bool,
    last_step: int = 0,
) -> AttemptEnd:
    previous = snapshot.previous
    streak = 1 if progressed or previous is None else previous.streak + 1
    cause = verdict.signature.partition(":")[0]
    # Without an end only where the volume is seen to be full.
    waits_for_room = cause == _VOLUME_FULL and (culprit is None or snapshot.output_room is not None)
    # A program that fails at its first step reports that step each time, without having come any further.
    is_stuck = previous is not None and 0 < last_step == previous.last_step
    before = previous.signature if previous is not None and (is_stuck or not previous.has_progressed) else None
    limit = snapshot.job.spec.max_restarts
    event, sentence = JobEvent.REQUEUE, verdict.sentence
    if is_final:
        event = JobEvent.FAIL
    elif not is_retryable(verdict, before, has_progressed=progressed and not is_stuck):
        event = JobEvent.FAIL
        if not verdict.is_hopeless:
            if verdict.is_transient_once:
                verdict = replace(verdict, kind=ExitKind.USER_ERROR)
            place = f"at step {last_step}" if is_stuck else "without progress"
            sentence += f" It ended the same way twice in a row {place}, so it is not started a third time."
    elif is_platform and streak > PLATFORM_STREAK_LIMIT and not waits_for_room:
        event = JobEvent.FAIL
        place = "registry" if cause == ExitCause.IMAGE_UNREACHABLE else "nodes"
        sentence += f" This happened {streak} times in a row; ask the administrator to look at the {place}."
    elif not is_platform and snapshot.job.restart_count >= limit:
        event = JobEvent.FAIL
        if limit:
            sentence += f" It was restarted {limit} {'time' if limit == 1 else 'times'} already (max_restarts)."
    elif snapshot.job.wanted is DesiredState.PAUSE:
        event = JobEvent.PAUSE
    role, _, index = culprit.replica.rpartition("-") if culprit is not None else ("", "", "")
    return AttemptEnd(
        event,
        verdict.kind,
        sentence,
        exit_code=culprit.exit_code if culprit is not None else None,
        role=role or None,
        index=int(index) if index else None,
        is_counted=event is JobEvent.REQUEUE and not is_platform,
        signature=verdict.signature,
        has_progressed=progressed,
        streak=streak,
        last_step=last_step,
        delay=_delay(streak, cause) if event is JobEvent.REQUEUE else timedelta(),
    )


def _delay(streak: int, cause: str) -> timedelta:
    if cause in (_VOLUME_FULL, ExitCause.IMAGE_UNREACHABLE):
        return infrastructure_delay(streak)
    return max(restart_delay(streak), _NODES_SYNC) if cause == ExitCause.MAINTENANCE else restart_delay(streak)


def _is_failure(member: GangMember) -> bool:
    return member.state in (ReplicaState.FAILED, ReplicaState.LOST) and (
        member.exit is not None and member.exit.cause is not ExitCause.STOPPED
    )


def _success_sentence(snapshot: AttemptSnapshot, members: tuple[GangMember, ...]) -> str:
    warnings = (
        success_note(member.exit) for member in members if member.exit is not None and member.exit.exit_code == 0
    )
    return _success_of(snapshot) + next(filter(None, warnings), "")


def _success_of(snapshot: AttemptSnapshot) -> str:
    roles = snapshot.job.spec.roles
    deciders = [(name, roles[name].replicas) for name in sorted(CompletionRules.of(snapshot.job.spec).deciders)]
    if sum(role.replicas for role in roles.values()) == 1:
        return "The command finished."
    listed = " and ".join(f"the {name}" if count == 1 else f"all {count} {name}s" for name, count in deciders)
    return f"{listed[0].upper()}{listed[1:]} finished."
