"""The sort key of the queue policy: of two jobs with equal shares the smaller key comes first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

import numpy as np

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
# Upper bounds in seconds of the buckets in which run times are counted, a minute to thirty days; the last has none.
_RATIO: Final = 1.25
_LONGEST_S: Final = 30 * 24 * 3600.0
RUN_TIME_BUCKETS: Final = tuple(60.0 * _RATIO**k for k in range(49) if 60.0 * _RATIO**k < _LONGEST_S)
# So many jobs with run times spread evenly over all orders of magnitude are counted besides those that have finished:
# as many jobs of a heavy-tailed workload as give way to what is learnt within a day.
_PRIOR_JOBS: Final = 10.0
_STEPS: Final = 5
# Orders that compare jobs by what they still need.
BY_LENGTH: Final = (QueueOrder.SHORTEST_FIRST, QueueOrder.FAIR_FINISH)


def run_time_bucket(run_s: float) -> int:
    """The index in ``Snapshot.finished_run_times`` of a run time in seconds."""
    return bisect_right(RUN_TIME_BUCKETS, run_s)


class GittinsIndex:
    """What a job of unknown length needs per chance to end.

    The smallest ratio, over all horizons, of the expected run time until it ends or reaches the horizon to the
    probability that it ends by then. Of a known length it would be the time that remains. Serving the smallest index
    first minimises the mean completion time on one server (Gittins, "Bandit processes and dynamic allocation indices",
    1979); for clusters see Tiresias' 2D-Gittins (Gu et al., NSDI 2019).

    Args:
        finished: counts per bucket, as ``Snapshot.finished_run_times``.
    """

    __slots__ = ("_ages_s", "_indices_s")

    def __init__(self, finished: Sequence[int]) -> None:
        bounds_s = np.array((0.0, *RUN_TIME_BUCKETS, 2 * RUN_TIME_BUCKETS[-1]))
        masses = np.full(len(bounds_s) - 1, _PRIOR_JOBS / (len(RUN_TIME_BUCKETS) - 1))
        masses[0] = masses[-1] = 0.0
        if finished:
            masses += np.array(finished, dtype=np.float64)
        # Most of a bucket's jobs may end in the middle of it, where the index then rises steeply.
        steps = np.linspace(0.0, 1.0, _STEPS, endpoint=False)
        ages_s = np.append((bounds_s[:-1, None] + np.diff(bounds_s)[:, None] * steps).ravel(), bounds_s[-1])
        masses = np.repeat(masses / _STEPS, _STEPS)
        # Chance to run longer than each age, and its integral; within a bucket run times are spread evenly.
        longer = np.concatenate((np.cumsum(masses[::-1])[::-1], [0.0]))
        spent_s = np.concatenate(([0.0], np.cumsum(np.diff(ages_s) * (longer[1:] + longer[:-1]) / 2)))
        ends = longer[:, None] - longer[None, :]
        ratios = np.full(ends.shape, np.inf)
        np.divide(spent_s[None, :] - spent_s[:, None], ends, out=ratios, where=ends > 0)
        indices_s = ratios.min(axis=1)
        self._ages_s: list[float] = ages_s.tolist()
        # Nobody has run for longer: as much again as it had.
        longest_s = np.maximum(ages_s, RUN_TIME_BUCKETS[0])
        self._indices_s: list[float] = np.where(np.isfinite(indices_s), indices_s, longest_s).tolist()

    def of(self, age_s: float) -> float:
        """Index in seconds of a job that has run for ``age_s``."""
        ages_s, indices_s = self._ages_s, self._indices_s
        after = bisect_right(ages_s, age_s)
        if after >= len(ages_s):
            return max(age_s, indices_s[-1])
        begin_s, index_s = ages_s[after - 1], indices_s[after - 1]
        part = (age_s - begin_s) / (ages_s[after] - begin_s)
        return index_s + part * (indices_s[after] - index_s)


@lru_cache(maxsize=16)
def gittins_index(finished: tuple[int, ...] = ()) -> GittinsIndex:
    """Of a snapshot's ``finished_run_times``; one plan asks several times, and the counts change rarely."""
    return GittinsIndex(finished)


def long_job_s(snapshot: Snapshot) -> float:
    """Remaining seconds from which on a job counts as long (``fair-finish``); infinite under other orders."""
    policy = snapshot.policy
    if policy.order is not QueueOrder.FAIR_FINISH:
        return float("inf")
    gpus = sum(node.allocatable.gpu_count for node in snapshot.nodes)
    jobs: Iterable[QueuedGang | RunningGang] = (*snapshot.queued, *snapshot.running)
    with_gpus = (job for job in jobs if any(gpu_milli(role.request) for role in job.gang.roles))
    # Summed in a fixed order: the sum of floats depends on it.
    index = gittins_index(snapshot.finished_run_times)
    work_gpu_s = sum(sorted(_left_gpu_s(job, index) for job in with_gpus))
    return _LONG * work_gpu_s / gpus if gpus else float("inf")


def policy_key(
    job: QueuedGang | RunningGang, policy: Policy, long_s: float = float("inf"), index: GittinsIndex | None = None
) -> float:
    """Remaining GPU-seconds (``shortest-first``), remaining seconds (``fair-finish``), or the level of attained
    service. Of a job of unknown length the Gittins index takes the place of the remaining time.

    Args:
        long_s: result of :func:`long_job_s`. A job with at least so much left precedes all others, the longest first:
        its key is negative. index: of the snapshot.
    """
    if policy.order is QueueOrder.ATTAINED_SERVICE:
        return bisect_right(policy.levels_gpu_s, job.attained_gpu_s)
    left_gpu_s = _left_gpu_s(job, index or gittins_index())
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


def next_comparison_s(ran_s: float, policy: Policy) -> float:
    """For how long a job has run when jobs of unknown length are compared with it again: after a time slice, and after
    twice as long each time, since its index changes in proportion to its age.
    """
    span_s = max(policy.time_slice_s or policy.min_run_time_s, policy.min_run_time_s, CLOCK_S)
    while span_s <= ran_s + CLOCK_S:
        span_s *= 2
    return span_s


def _left_gpu_s(job: QueuedGang | RunningGang, index: GittinsIndex) -> float:
    gpus = gpus_of(job.gang)
    return gpus * (job.estimate.likely_s if job.estimate is not None else index.of(job.attained_gpu_s / gpus))
