"""What the end of an attempt means for its job: over, again, paused or cancelled. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from trainmaster.spec import Contract

from core.domain.jobs.exits import (
    ExitCause,
    ExitFacts,
    ExitKind,
    Verdict,
    classify,
    is_worth_a_restart,
    root_cause,
    told_of_server,
)
from core.domain.jobs.lifecycle import JobEvent
from core.domain.jobs.states import JobState, ReplicaState, Wanted
from scheduler.control.attempts.attempt_snapshot import Member, Rules, Sight, Stop, StopCause
from scheduler.control.attempts.backoff import restart_delay

# An attempt that trained this long has come somewhere, even when it told of no step.
PROGRESS_TIME: Final = timedelta(minutes=1)
# What the platform causes does not count, but a job that is lost this often in a row without any progress is
# itself the cause (it brings its machine down), or the platform needs a person.
PLATFORM_STREAK_LIMIT: Final = 20


@dataclass(frozen=True, slots=True)
class End:
    """The end of an attempt. ``event`` is the job's move, ``delay`` the wait before the next attempt.

    ``last_step``: where it came to, when a step that it told of is all that shows its progress.
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
        """As ``attempts.end`` and ``jobs.exit`` keep it; the wire's ``ExitView`` is a part of it."""
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


def outcome(sight: Sight, members: tuple[Member, ...], stop: Stop | None, now: datetime) -> End:
    """The end of an attempt of which nothing is left.

    Args:
        stop: why the platform ended it; ``None`` when its deciders succeeded.
    """
    is_cancelled = sight.job.wanted is Wanted.CANCEL or sight.job.state is JobState.CANCELLING
    if is_cancelled:
        return End(JobEvent.CONFIRM_CANCEL, ExitKind.CANCELLED, sight.wish or "The job was cancelled.")
    progressed = has_progressed(sight, members, now)
    if stop is None:
        return End(JobEvent.SUCCEED, ExitKind.SUCCESS, _success(sight), exit_code=0, has_progressed=True)
    cause = stop.cause
    match cause:
        case StopCause.CANCEL:
            return End(JobEvent.CONFIRM_CANCEL, ExitKind.CANCELLED, stop.sentence)
        case StopCause.PAUSE:
            event = JobEvent.PAUSE if sight.job.wanted is Wanted.PAUSE else JobEvent.REQUEUE
            return End(event, ExitKind.CANCELLED, stop.sentence, has_progressed=progressed, streak=0)
        case StopCause.PREEMPT:
            # Neither the job's fault nor a failure: it waits for its turn again, at once, and nothing is counted.
            event = JobEvent.PAUSE if sight.job.wanted is Wanted.PAUSE else JobEvent.REQUEUE
            return End(event, ExitKind.PLATFORM, stop.sentence, has_progressed=True, streak=0)
        case StopCause.DEADLINE:
            return End(JobEvent.EXPIRE, ExitKind.DEADLINE, stop.sentence, has_progressed=progressed)
        case StopCause.REFUSED:
            return End(JobEvent.FAIL, ExitKind.USER_ERROR, stop.sentence, has_progressed=progressed)
        case StopCause.CAPACITY:
            verdict = Verdict(ExitKind.CAPACITY, stop.sentence, "capacity")
            return _failure(sight, verdict, None, progressed=progressed, is_final=False, is_platform=True)
        case StopCause.REMOVED:
            verdict = Verdict(ExitKind.PLATFORM, stop.sentence, "removed")
            return _failure(sight, verdict, None, progressed=progressed, is_final=False, is_platform=True)
        case StopCause.FAILURE:
            culprit = root_cause([m.exit for m in members if m.exit is not None and _is_failure(m)])
            verdict = classify(culprit) if culprit else Verdict(ExitKind.PLATFORM, stop.sentence, "unknown")
            if sight.job.spec.contract is Contract.SERVING:
                verdict = told_of_server(verdict)
            return _failure(
                sight,
                verdict,
                culprit,
                progressed=progressed,
                last_step=0 if _has_work(sight, members, now) else _last_step(members),
                is_final=stop.is_final,
                is_platform=verdict.kind is ExitKind.PLATFORM,
            )


def has_progressed(sight: Sight, members: tuple[Member, ...], now: datetime) -> bool:
    """Whether the attempt came somewhere: a step, a checkpoint, or a minute of work."""
    return _has_work(sight, members, now) or _last_step(members) > 0


def _has_work(sight: Sight, members: tuple[Member, ...], now: datetime) -> bool:
    longest = max(((m.ended_at or now) - m.started_at for m in members if m.started_at), default=timedelta())
    return sight.has_checkpoint or longest >= PROGRESS_TIME


def _last_step(members: tuple[Member, ...]) -> int:
    return max((member.step for member in members), default=0)


def _failure(
    sight: Sight,
    verdict: Verdict,
    culprit: ExitFacts | None,
    *,
    progressed: bool,
    is_final: bool,
    is_platform: bool,
    last_step: int = 0,
) -> End:
    previous = sight.previous
    streak = 1 if progressed or previous is None else previous.streak + 1
    # A program that fails at its first step tells of that step each time, and has come no further than before.
    is_stuck = previous is not None and 0 < last_step == previous.last_step
    before = previous.signature if previous is not None and (is_stuck or not previous.has_progressed) else None
    limit = sight.job.spec.max_restarts
    event, sentence = JobEvent.REQUEUE, verdict.sentence
    if is_final:
        event = JobEvent.FAIL
    elif not is_worth_a_restart(verdict, before, has_progressed=progressed and not is_stuck):
        event = JobEvent.FAIL
        if not verdict.is_hopeless:
            came = f"at step {last_step}" if is_stuck else "without progress"
            sentence += f" It ended the same way twice in a row {came}, so it is not started a third time."
    elif is_platform and streak > PLATFORM_STREAK_LIMIT:
        event = JobEvent.FAIL
        sentence += f" This happened {streak} times in a row; ask the administrator to look at the nodes."
    elif not is_platform and sight.job.restart_count >= limit:
        event = JobEvent.FAIL
        if limit:
            sentence += f" It was restarted {limit} {'time' if limit == 1 else 'times'} already (max_restarts)."
    elif sight.job.wanted is Wanted.PAUSE:
        event = JobEvent.PAUSE
    who = culprit.who.rpartition("-") if culprit is not None else None
    return End(
        event,
        verdict.kind,
        sentence,
        exit_code=culprit.exit_code if culprit is not None else None,
        role=who[0] if who else None,
        index=int(who[2]) if who else None,
        is_counted=event is JobEvent.REQUEUE and not is_platform,
        signature=verdict.signature,
        has_progressed=progressed,
        streak=streak,
        last_step=last_step,
        delay=restart_delay(streak) if event is JobEvent.REQUEUE else timedelta(),
    )


def _is_failure(member: Member) -> bool:
    return member.state in (ReplicaState.FAILED, ReplicaState.LOST) and (
        member.exit is not None and member.exit.cause is not ExitCause.STOPPED
    )


def _success(sight: Sight) -> str:
    roles = sight.job.spec.roles
    deciders = [(name, roles[name].replicas) for name in sorted(Rules.of(sight.job.spec).deciders)]
    if sum(role.replicas for role in roles.values()) == 1:
        return "The command finished."
    listed = " and ".join(f"the {name}" if count == 1 else f"all {count} {name}s" for name, count in deciders)
    return f"{listed[0].upper()}{listed[1:]} finished."
