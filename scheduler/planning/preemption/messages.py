"""Messages about preemption: to victims, shrunk jobs, and the job that waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from scheduler.planning import phrases
from scheduler.planning.model import Booking, PreemptCode, QueuedGang, Reason, RunningGang, Snapshot, WaitReasonCode
from scheduler.planning.queue.policy_key import CLOCK_S

# Whether the job has a checkpoint is not read here, and it may still write one while it stops.
_GOES_ON: Final = "when there is room it resumes from its last complete checkpoint, or starts over if it has none"
_NAMED_JOBS: Final = 2  # jobs listed by name; the others by number


class PreemptionMessages:
    """The sentences of one plan."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.now: datetime = snapshot.now

    # ---- to those who are stopped ----

    def stopped(
        self, gang: RunningGang, job: QueuedGang, code: PreemptCode, turns: tuple[int, int] | None = None
    ) -> str:
        """``turns``: the whole turns of ``job`` and ``gang``, if these decided."""
        why = self._why(gang, job, code) if turns is None else self._rotated(gang, job, *turns)
        return f"{why}; {_GOES_ON}"

    def _rotated(self, gang: RunningGang, job: QueuedGang, job_turns: int, gang_turns: int) -> str:
        policy = self.snapshot.policy
        ran_s = (self.now - (gang.started_at or self.now)).total_seconds()
        whole_s, slice_s = policy.rotation_s or 0.0, policy.time_slice_s
        turn_s = whole_s if slice_s is None or ran_s + CLOCK_S >= whole_s else slice_s
        reason = f"stopped since its turn of {phrases.span(turn_s)} is over and job {job.name} of the same priority "
        waited_s = (self.now - (job.waits_since or job.queued_at)).total_seconds()
        if waited_s >= policy.starvation_s:
            return f"{reason}has waited for {phrases.span(policy.starvation_s)} or more"
        if job_turns < gang_turns:
            return f"{reason}has had fewer ({job_turns} against {gang_turns})"
        return f"{reason}has had no more ({job_turns}) and queued before it"

    def _why(self, gang: RunningGang, job: QueuedGang, code: PreemptCode) -> str:
        match code:
            case PreemptCode.PRIORITY:
                return f"stopped for job {job.name} of larger priority ({job.priority} against {gang.priority})"
            case PreemptCode.GUARANTEE if gang.project == job.project:
                return (
                    f"stopped for job {job.name}: user {gang.user} used more than what is guaranteed inside project "
                    f"{gang.project}, and user {job.user} gets back what is guaranteed there"
                )
            case PreemptCode.FAIR_SHARE if gang.project == job.project:
                return (
                    f"stopped for job {job.name}: user {gang.user} had more than a fair share of project "
                    f"{gang.project} and user {job.user} less"
                )
            case PreemptCode.GUARANTEE:
                return (
                    f"stopped for job {job.name}: project {gang.project} used more than what is guaranteed to it, and "
                    f"project {job.project} gets back what is guaranteed to it"
                )
            case PreemptCode.FAIR_SHARE:
                return (
                    f"stopped for job {job.name}: project {gang.project} had more than its share and project "
                    f"{job.project} less"
                )
            case PreemptCode.TIME_SLICE:
                return f"stopped after its turn for job {job.name} of the same priority, which comes first now"
            case PreemptCode.MOVE:
                return f"stopped to go on elsewhere, so that job {job.name} finds room"
            case PreemptCode.BOOKING:
                return f"stopped since its nodes are reserved for project {job.project}"
            case PreemptCode.DRAIN:
                return "stopped since its nodes are being drained"

    def booked(self, booking: Booking, nodes: Sequence[str]) -> str:
        noun = "is" if len(nodes) == 1 else "are"
        return (
            f"stopped since {phrases.shortlist(nodes)} {noun} reserved for project {booking.project} until "
            f"{phrases.about(booking.ends_at, self.now)} ({booking.name}); {_GOES_ON}"
        )

    def drained(self, nodes: Sequence[str]) -> str:
        noun = "is" if len(nodes) == 1 else "are"
        return f"stopped since {phrases.shortlist(nodes)} {noun} being drained; {_GOES_ON}"

    def shrunk(self, gang: RunningGang, replicas: int, job: QueuedGang) -> str:
        role = gang.gang.elastic
        if role is None:
            return ""
        replicas_now = sum(name == role.role for name, _ in gang.nodes)
        return (
            f"gave {replicas} of its {replicas_now} {phrases.plural(role.role, replicas_now)} back for job "
            f"{job.name}, which waits; runs on with {replicas_now - replicas}"
        )

    # ---- to the one who waits ----

    def preempting(self, stopped: Sequence[RunningGang], smaller: Sequence[RunningGang]) -> Reason:
        """The wait reason of a job for which victims are stopped from now on."""
        at = self.now + timedelta(seconds=self.snapshot.policy.grace_s) if stopped else self.now
        return self._reason(stopped, smaller, at)

    def nominated(self, stopping: Sequence[RunningGang]) -> Reason:
        """The wait reason of a job for which victims have been stopping since an earlier plan."""
        ends = [gang.expected_end for gang in stopping]
        known = [end for end in ends if end is not None]
        return self._reason(stopping, (), max(known) if known and len(known) == len(ends) else None)

    def _reason(self, stopped: Sequence[RunningGang], smaller: Sequence[RunningGang], at: datetime | None) -> Reason:
        parts: list[str] = []
        if stopped:
            verb = "is" if len(stopped) == 1 else "are"
            parts.append(f"{self._named(stopped)} {verb} being stopped for it")
        if smaller:
            verb = "gives" if len(smaller) == 1 else "give"
            parts.append(f"{self._named(smaller)} {verb} replicas back for it")
        cause = phrases.all_of(parts) or "room is kept for it that is about to become free"
        numbers = {
            "stopping": [gang.job_id for gang in stopped],
            "shrinking": [gang.job_id for gang in smaller],
        }
        if at is None:
            return Reason(WaitReasonCode.PREEMPTING, f"{cause}; it starts as soon as that has ended", dict(numbers))
        moment = "any moment" if at <= self.now else f"at {phrases.about(at, self.now)}"
        return Reason(
            WaitReasonCode.PREEMPTING,
            f"{cause}, so that it starts {moment}",
            {**numbers, "expected_start": at.isoformat()},
        )

    def _named(self, gangs: Sequence[RunningGang]) -> str:
        """``job sweep-31 (4 GPUs on gpu-07) and 3 more jobs``."""
        first = sorted(gangs, key=lambda gang: gang.job_id)
        descriptions = [f"{gang.name} ({_what(gang)})" for gang in first[:_NAMED_JOBS]]
        noun = "job" if len(gangs) == 1 else "jobs"
        return f"{noun} {phrases.shortlist([*descriptions, *(gang.name for gang in first[_NAMED_JOBS:])], _NAMED_JOBS)}"


def _what(gang: RunningGang) -> str:
    """``4 GPUs on gpu-07``."""
    requests = {role.role: role.request for role in gang.gang.roles}
    milli = sum(
        1000 * requests[role].gpu_count + requests[role].gpu_milli for role, _ in gang.nodes if role in requests
    )
    nodes = sorted({node for _, node in gang.nodes})
    where = phrases.shortlist(nodes, 2)
    if not milli:
        return f"on {where}"
    return f"{milli / 1000:g} {'GPU' if milli == 1000 else 'GPUs'} on {where}"
