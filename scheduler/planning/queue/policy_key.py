"""The sort key of the queue policy: of two jobs with equal shares the smaller key comes first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from core.domain.sharing.policy import Policy, QueueOrder
from scheduler.planning.model import QueuedGang, RunningGang, Snapshot
from scheduler.planning.queue.shares import gpu_milli, gpus_of

# A job is long if it alone takes this much longer than all remaining work spread over all GPUs. A factor of 1 is the
# lower bound of any schedule's length, max(work / GPUs, longest job); slightly more, since work never spreads
# perfectly.
_LONG: Final = 1.1
# Hysteresis: a running job stays long until it is clearly not; otherwise two jobs would preempt each other.
_STAYS_LONG: Final = 0.9
# Timestamps are exact to a microsecond: a turn that is over is not missed because of rounding.
CLOCK_S: Final = 1e-3


def long_job_s(snapshot: Snapshot) -> float:
    """Remaining seconds from which on a job counts as long (``fair-finish``); infinite under other orders."""
    policy = snapshot.policy
    if policy.order is not QueueOrder.FAIR_FINISH:
        return float("inf")
    gpus = sum(node.allocatable.gpu_count for node in snapshot.nodes)
    jobs: Iterable[QueuedGang | RunningGang] = (*snapshot.queued, *snapshot.running)
    with_gpus = (job for job in jobs if any(gpu_milli(role.request) for role in job.gang.roles))
    # Summed in a fixed order: the sum of floats depends on it.
    work_gpu_s = sum(sorted(_left_gpu_s(job, policy) for job in with_gpus))
    return _LONG * work_gpu_s / gpus if gpus else float("inf")


def policy_key(job: QueuedGang | RunningGang, policy: Policy, long_s: float = float("inf")) -> float:
    """Remaining GPU-seconds (``shortest-first``), remaining seconds (``fair-finish``), or the level of attained
    service.

    Args:
        long_s: result of :func:`long_job_s`. A job with at least so much left precedes all others, the longest first:
            its key is negative.
    """
    if policy.order is QueueOrder.ATTAINED_SERVICE:
        return bisect_right(policy.levels_gpu_s, job.attained_gpu_s)
    left_gpu_s = _left_gpu_s(job, policy)
    if policy.order is not QueueOrder.FAIR_FINISH:
        return left_gpu_s
    left_s = left_gpu_s / gpus_of(job.gang)
    is_long = left_s >= long_s * (_STAYS_LONG if isinstance(job, RunningGang) else 1)
    return -left_s if is_long else left_s


def turns_taken(job: QueuedGang | RunningGang, policy: Policy, now: datetime) -> int:
    """Whole turns (``Policy.rotation_s``) that it has run in all its attempts; 0 for a waiting job that starves.

    Rises only while the job runs, and stays while it waits, until it starves.
    """
    turn_s = policy.rotation_s
    if turn_s is None:
        return 0
    ran_s = job.earlier_s
    if isinstance(job, RunningGang):
        if job.started_at is not None:
            ran_s += (now - job.started_at).total_seconds()
    elif (now - (job.waits_since or job.queued_at)).total_seconds() >= policy.starvation_s:
        return 0
    return int((ran_s + CLOCK_S) // turn_s)


def _left_gpu_s(job: QueuedGang | RunningGang, policy: Policy) -> float:
    if job.estimate is not None:
        return job.estimate.likely_s * gpus_of(job.gang)
    # Unknown length: assume the rest of its level; where levels have no end, as much again as it had, which half of
    # all jobs do whose durations have a heavy tail (Harchol-Balter and Downey, "Exploiting process lifetime
    # distributions for dynamic load balancing", 1997).
    ends = policy.levels_gpu_s
    level = bisect_right(ends, job.attained_gpu_s)
    return ends[level] if level < len(ends) else job.attained_gpu_s
