"""When the planner would decide otherwise though nothing came, ended or changed: only time has passed.

The control loop looks every second; a simulation of a year cannot. Instead it plans again at the moments at which an
answer can change: a minimum run time or a turn is over, in this attempt or in all of them together, a job reaches the next level of attained service or has
starved, its progress tells how long it is, a reservation begins or ends.
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

_SOON_S = 1e-6  # moments nearer than this are now: sums of floats are not exact


def next_look_s(
    now_s: float,
    *,
    policy: Policy,
    estimator: Estimator,
    running: Iterable[tuple[Progress, float]],
    waiting: Iterable[QueuedGang],
    bookings: Iterable[Booking],
    start: datetime,
) -> float:
    """The next such moment, infinity if there is none.

    Args:
        running: how far each running job is, and when its attempt began.
        start: the moment 0 of the simulation.
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
            turns = (progress.held_s + CLOCK_S) // policy.rotation_s  # what it has run for in all may fill one later
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
