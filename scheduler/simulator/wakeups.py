"""Moments at which the planner may decide differently though nothing arrived, ended or changed: only time has passed.

The control loop plans every second; a simulation of a year cannot. Instead it plans again when an answer may change:
a minimum run time or a time slice is over, in this attempt or in all of them together, a job reaches the next level
of attained service or starves, its progress reveals its length, a reservation begins or ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime

from scheduler.planning.model import Booking, QueuedGang
from scheduler.planning.policy import Policy, QueueOrder
from scheduler.planning.queue.policy_key import CLOCK_S
from scheduler.simulator.estimates import Estimator
from scheduler.simulator.progress import Progress

_SOON_S = 1e-6  # moments closer than this are simultaneous: sums of floats are not exact


def next_change_s(
    now_s: float,
    *,
    policy: Policy,
    estimator: Estimator,
    running: Iterable[tuple[Progress, float]],
    waiting: Iterable[QueuedGang],
    bookings: Iterable[Booking],
    start: datetime,
) -> float:
    """The next such moment; infinity if there is none.

    Args:
        running: progress of each running job, and when its attempt began. start: time 0 of the simulation.
    """
    nearest_s = math.inf
    soon_s = now_s + _SOON_S
    after_s = {policy.min_run_time_s}
    for span_s in (policy.time_slice_s, policy.rotation_s):
        if span_s is not None:
            after_s.add(max(span_s, policy.min_run_time_s))
    has_levels = policy.order is not QueueOrder.FIFO
    for progress, began_s in running:
        moments = [began_s + passed_s for passed_s in after_s]
        moments.append(estimator.changes_s(progress))
        if policy.rotation_s is not None:
            turns = (progress.held_s + CLOCK_S) // policy.rotation_s  # its total run time may complete a turn later
            moments.append(now_s + (turns + 1) * policy.rotation_s - progress.held_s)
        if has_levels and progress.rate > 0:
            moments += [
                now_s + (end - progress.attained_gpu_s) / progress.rate
                for end in policy.levels_gpu_s
                if end > progress.attained_gpu_s
            ][:1]
        nearest_s = min(nearest_s, *(moment for moment in moments if moment > soon_s), math.inf)
    if has_levels or policy.rotation_s is not None:
        for job in waiting:
            since_s = ((job.waits_since or job.queued_at) - start).total_seconds()
            if now_s < since_s + policy.starvation_s - _SOON_S < nearest_s:
                nearest_s = since_s + policy.starvation_s
    for booking in bookings:
        for moment in (booking.begins_at, booking.ends_at):
            if (at_s := (moment - start).total_seconds()) > soon_s:
                nearest_s = min(nearest_s, at_s)
    return nearest_s
