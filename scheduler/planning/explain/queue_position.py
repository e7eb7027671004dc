"""Explanation of a job's queue position: how many jobs precede it, grouped by why they do.

Other jobs, users and projects are only counted: the reader may not be allowed to know about them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from core.domain.ids import JobId
from core.domain.sharing.policy import Policy, QueueOrder
from scheduler.planning import phrases
from scheduler.planning.model import OVER_BUDGET, Plan, QueuedGang, Snapshot
from scheduler.planning.queue.policy_key import turns_taken
from scheduler.planning.queue.quota import is_guaranteed
from scheduler.planning.queue.shares import Shares

_MOST_CONSIDERED = 100_000  # jobs that are considered: more would tell a reader nothing


def explain_position(snapshot: Snapshot, current_plan: Plan, job_id: JobId) -> str:
    """One or two sentences about a job that waits; empty where it has no place in the queue."""
    jobs = {job.job_id: job for job in snapshot.queued}
    job = jobs.get(job_id)
    if job is None or job_id not in current_plan.waits or current_plan.is_infeasible(job_id):
        return ""
    shares = Shares(snapshot)
    order = current_plan.order[: current_plan.order.index(job_id)][-_MOST_CONSIDERED:]
    preceding = [jobs[other] for other in order if other in jobs and not current_plan.is_infeasible(other)]
    rules = _groups(job, snapshot.policy, shares)
    groups, ungrouped = [], preceding
    for matches, phrase in rules:
        members = [other for other in ungrouped if matches(other)]
        ungrouped = [other for other in ungrouped if not matches(other)]
        if members:
            groups.append(phrase(len(members)))
    own_figures = _own_figures(job, snapshot, shares)
    if not groups:
        return f"no job comes before it{f'; {own_figures}' if own_figures else ''}"
    count = len(preceding)
    comes = f"{count} {phrases.plural('job', count)} {'comes' if count == 1 else 'come'} before it"
    return f"{comes}: {'; '.join(groups)}" + (f". {own_figures[0].upper()}{own_figures[1:]}" if own_figures else "")


_Group = tuple[Callable[[QueuedGang], bool], Callable[[int], str]]


def _groups(job: QueuedGang, policy: Policy, shares: Shares) -> list[_Group]:
    """Groups of preceding jobs; a job belongs to the first group that matches."""

    def are(count: int) -> str:
        return f"{count} {'is' if count == 1 else 'are'}"

    def is_guaranteed_job(other: QueuedGang) -> bool:
        return is_guaranteed(other.project, shares.likely_amounts(other.gang, other.shape), shares, waits=other.gang)

    rules: list[_Group] = [
        (
            lambda other: other.priority > job.priority,
            lambda n: (
                f"{are(n)} of a larger priority than its {job.priority}"
                if job.priority > OVER_BUDGET
                else f"{are(n)} of projects within their budgets"
            ),
        ),
        (
            lambda other: other.room_since is not None,
            lambda n: f"{are(n)} promised room for which others are being stopped",
        ),
        (
            lambda other: other.project != job.project and is_guaranteed_job(other) and not is_guaranteed_job(job),
            lambda n: f"{are(n)} of projects to which it is guaranteed",
        ),
    ]
    by_order = _ORDERS[policy.order]
    if policy.rotation_s is not None:
        by_order = f"{by_order}; of equals, fewer turns so far" if policy.order is not QueueOrder.FIFO else _ROTATED
    if policy.is_fair:
        rules += [
            (
                lambda other: other.project != job.project,
                lambda n: f"{are(n)} of projects whose turn comes first by shares",
            ),
            (
                lambda other: other.user != job.user,
                lambda n: f"{are(n)} of users of its project whose turn comes first by shares",
            ),
            (lambda _: True, lambda n: f"{are(n)} of the same user and first by {policy.order}: {by_order}"),
        ]
    else:
        rules.append((lambda _: True, lambda n: f"{are(n)} first by {policy.order}: {by_order}"))
    return rules


_ROTATED = "fewer turns so far, or as many and a longer wait"
_ORDERS = {
    QueueOrder.FIFO: "a longer wait",
    QueueOrder.SHORTEST_FIRST: "probably less GPU time to run, or too long a wait",
    QueueOrder.FAIR_FINISH: "probably less time to run, or so much that it ends last, or too long a wait",
    QueueOrder.ATTAINED_SERVICE: "less GPU time so far, or a longer wait",
}


def _own_figures(job: QueuedGang, snapshot: Snapshot, shares: Shares) -> str:
    """The job's own figures in the comparison."""
    policy = snapshot.policy
    figures = []
    if job.priority == OVER_BUDGET:
        figures.append(
            f"its project {job.project} has spent this month's budget, so its jobs come behind those of all others"
        )
    if policy.is_fair and snapshot.accounts:
        part, _ = shares.dominant_share(shares.occupied_by_project.get(job.project, {}))
        account = shares.accounts.get(job.project)
        lately = f", lately {account.usage:.0%}" if account is not None and policy.usage_weight else ""
        figures.append(
            f"its project {job.project} holds {part:.0%} of the cluster{lately}, "
            f"with weight {shares.weight_of(job.project):g}"
        )
    waited_s = (snapshot.now - (job.waits_since or job.queued_at)).total_seconds()
    is_rotated = policy.rotation_s is not None
    if (policy.order is not QueueOrder.FIFO or is_rotated) and waited_s >= policy.starvation_s:
        longest = timedelta(seconds=policy.starvation_s)
        figures.append(f"it has been without resources for more than {longest}, so it comes first of its user's")
    elif policy.order is QueueOrder.ATTAINED_SERVICE:
        level = policy.level(job.attained_gpu_s)
        figures.append(f"it is on level {level + 1} of {len(policy.levels_gpu_s) + 1}, {_service(job)}")
    if policy.rotation_s is not None and waited_s < policy.starvation_s:
        turns = turns_taken(job, policy, snapshot.now)
        figures.append(
            f"it has had {turns or 'no'} whole {phrases.plural('turn', turns)} of {phrases.span(policy.rotation_s)}"
        )
    return "; ".join(figures)


def _service(job: QueuedGang) -> str:
    """Its attained service: GPU time; for a gang without GPUs the run time, which counts for it."""
    attained_s, has_gpus = job.attained_gpu_s, job.gang.gpu_milli > 0
    if not attained_s:
        return "having had no GPU time yet" if has_gpus else "not having run yet"
    verb = "having had" if has_gpus else "having run for"
    unit = "GPU " if has_gpus else ""
    if attained_s < 60:
        return f"{verb} less than a {unit}minute"
    if attained_s >= 3600:
        hours = f"{attained_s / 3600:.1f}".removesuffix(".0")
        return f"{verb} {hours} {unit}{'hour' if hours == '1' else 'hours'}"
    minutes = round(attained_s / 60)
    return f"{verb} {minutes} {unit}{phrases.plural('minute', minutes)}"
