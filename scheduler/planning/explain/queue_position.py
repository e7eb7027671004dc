"""Explanation of a job's queue position: how many jobs precede it, grouped by why they do.

Other jobs, users and projects are only counted: the reader may not be allowed to know about them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from core.domain.ids import JobId
from scheduler.planning.explain import phrases
from scheduler.planning.forecast.start_times import can_never_start
from scheduler.planning.model import Plan, QueuedGang, Snapshot
from scheduler.planning.policy import Policy, QueueOrder
from scheduler.planning.queue.policy_key import turns_taken
from scheduler.planning.queue.quota import is_guaranteed
from scheduler.planning.queue.shares import Shares

_MOST_TOLD = 100_000  # jobs that are considered: more would tell a reader nothing


def standing(snapshot: Snapshot, made: Plan, job_id: JobId) -> str:
    """One or two sentences about a job that waits; empty where it has no place in the queue."""
    jobs = {job.job_id: job for job in snapshot.queued}
    job = jobs.get(job_id)
    if job is None or job_id not in made.waits or can_never_start(made, job_id):
        return ""
    shares = Shares(snapshot)
    order = made.order[: made.order.index(job_id)][-_MOST_TOLD:]
    before = [jobs[one] for one in order if one in jobs and not can_never_start(made, one)]
    kinds = _kinds(job, snapshot.policy, shares)
    told, left = [], before
    for is_of, tell in kinds:
        found = [one for one in left if is_of(one)]
        left = [one for one in left if not is_of(one)]
        if found:
            told.append(tell(len(found)))
    own = _own(job, snapshot, shares)
    if not told:
        return f"no job comes before it{f'; {own}' if own else ''}"
    comes = f"{len(before)} {phrases.plural('job', len(before))} {'comes' if len(before) == 1 else 'come'} before it"
    return f"{comes}: {'; '.join(told)}" + (f". {own[0].upper()}{own[1:]}" if own else "")


_Kind = tuple[Callable[[QueuedGang], bool], Callable[[int], str]]


def _kinds(job: QueuedGang, policy: Policy, shares: Shares) -> list[_Kind]:
    """Groups of preceding jobs; a job belongs to the first group that matches."""

    def are(count: int) -> str:
        return f"{count} {'is' if count == 1 else 'are'}"

    def owed(one: QueuedGang) -> bool:
        return is_guaranteed(one.project, shares.likely_amounts(one.gang, one.shape), shares, waits=one.gang)

    kinds: list[_Kind] = [
        (lambda one: one.priority > job.priority, lambda n: f"{are(n)} of a larger priority than its {job.priority}"),
        (
            lambda one: one.room_since is not None,
            lambda n: f"{are(n)} promised room for which others are being stopped",
        ),
        (
            lambda one: one.project != job.project and owed(one) and not owed(job),
            lambda n: f"{are(n)} of projects to which it is guaranteed",
        ),
    ]
    by_order = _ORDERS[policy.order]
    if policy.rotation_s is not None:
        by_order = f"{by_order}; of equals, fewer turns so far" if policy.order is not QueueOrder.FIFO else _ROTATED
    if policy.is_fair:
        kinds += [
            (
                lambda one: one.project != job.project,
                lambda n: f"{are(n)} of projects whose turn comes first by shares",
            ),
            (
                lambda one: one.user != job.user,
                lambda n: f"{are(n)} of users of its project whose turn comes first by shares",
            ),
            (lambda _: True, lambda n: f"{are(n)} of the same user and first by {policy.order}: {by_order}"),
        ]
    else:
        kinds.append((lambda _: True, lambda n: f"{are(n)} first by {policy.order}: {by_order}"))
    return kinds


_ROTATED = "fewer turns so far, or as many and a longer wait"
_ORDERS = {
    QueueOrder.FIFO: "a longer wait",
    QueueOrder.SHORTEST_FIRST: "probably less GPU time to run, or too long a wait",
    QueueOrder.FAIR_FINISH: "probably less time to run, or so much that it ends last, or too long a wait",
    QueueOrder.ATTAINED_SERVICE: "less GPU time so far, or a longer wait",
}


def _own(job: QueuedGang, snapshot: Snapshot, shares: Shares) -> str:
    """The job's own figures in the comparison."""
    policy = snapshot.policy
    told = []
    if policy.is_fair and snapshot.accounts:
        part, _ = shares.dominant_share(shares.held_by_project.get(job.project, {}))
        account = shares.accounts.get(job.project)
        lately = f", lately {account.usage:.0%}" if account is not None and policy.usage_weight else ""
        told.append(
            f"its project {job.project} holds {part:.0%} of the cluster{lately}, with weight {shares.weight_of(job.project):g}"
        )
    waited_s = (snapshot.now - (job.waits_since or job.queued_at)).total_seconds()
    is_rotated = policy.rotation_s is not None
    if (policy.order is not QueueOrder.FIFO or is_rotated) and waited_s >= policy.starvation_s:
        longest = timedelta(seconds=policy.starvation_s)
        told.append(f"it has been without resources for more than {longest}, so it comes first of its user's")
    elif policy.order is QueueOrder.ATTAINED_SERVICE:
        level = policy.level(job.attained_gpu_s)
        told.append(f"it is on level {level + 1} of {len(policy.levels_gpu_s) + 1}, {_service(job)}")
    if policy.rotation_s is not None and waited_s < policy.starvation_s:
        turns = turns_taken(job, policy, snapshot.now)
        told.append(
            f"it has had {turns or 'no'} whole {phrases.plural('turn', turns)} of {phrases.span(policy.rotation_s)}"
        )
    return "; ".join(told)


def _service(job: QueuedGang) -> str:
    """Its attained service: GPU time; for a gang without GPUs the run time, which counts for it."""
    had_s, has_gpus = job.attained_gpu_s, job.gang.gpu_milli > 0
    if not had_s:
        return "having had no GPU time yet" if has_gpus else "not having run yet"
    told = "having had" if has_gpus else "having run for"
    unit = "GPU " if has_gpus else ""
    if had_s < 60:
        return f"{told} less than a {unit}minute"
    if had_s >= 3600:
        hours = f"{had_s / 3600:.1f}".removesuffix(".0")
        return f"{told} {hours} {unit}{'hour' if hours == '1' else 'hours'}"
    minutes = round(had_s / 60)
    return f"{told} {minutes} {unit}{phrases.plural('minute', minutes)}"
