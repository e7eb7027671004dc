"""Isolation of poison jobs, which crash the planner, so that one broken job does not stop all others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import structlog

from core.domain.ids import JobId
from core.domain.sharing.resources import Gang, GangRole, ResourceRequest
from scheduler.planning.model import Plan, QueuedGang, Reason, Snapshot, WaitReasonCode

log = structlog.get_logger(__name__)

# At most so many plans are made to find the poison jobs of one queue: a few among 50,000 take half as many.
_MOST_PLANS: Final = 64
# Finding them again costs some plans.
_AGAIN: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class FilteredPlan:
    """``snapshot``: the planned one, without poison jobs; ``plan``: gives these a reason for waiting as well."""

    snapshot: Snapshot
    plan: Plan


@dataclass(frozen=True, slots=True)
class _PoisonJob:
    generation: int
    reason: Reason
    since: datetime


class PoisonJobFilter:
    """Plans without poison jobs, which are found by bisection and remembered for a while, unless they change.

    For one thread.
    """

    def __init__(self) -> None:
        self._poison: dict[JobId, _PoisonJob] = {}

    def plan(
        self, snapshot: Snapshot, generations: Mapping[JobId, int], plan: Callable[[Snapshot], Plan]
    ) -> FilteredPlan:
        """The plan; poison jobs wait, with the reason.

        Raises:
            Exception: the planner's own, where no waiting job is its cause.
        """
        poison = self._remembered(snapshot, generations)
        for job in _without_replicas(_without(snapshot, poison)):
            log.warning("job.excluded", job=job.job_id, error="it has no replicas")
            poison[job.job_id] = _PoisonJob(generations.get(job.job_id, 0), _NO_REPLICAS, snapshot.now)
        remaining = _without(snapshot, poison)
        try:
            made = plan(remaining)
        except Exception as error:
            log.exception("planner.failed")
            for job_id in _bisect(remaining, plan, error):
                log.warning("job.excluded", job=job_id, error=repr(error))
                poison[job_id] = _PoisonJob(generations.get(job_id, 0), _reason(error), snapshot.now)
            remaining = _without(snapshot, poison)
            made = plan(remaining)
        self._poison = poison
        if not poison:
            return FilteredPlan(remaining, made)
        reasons = {job_id: job.reason for job_id, job in poison.items()}
        return FilteredPlan(remaining, replace(made, waits={**made.waits, **reasons}))

    def without_known(self, snapshot: Snapshot, generations: Mapping[JobId, int]) -> Snapshot:
        """``snapshot`` without known poison jobs, for a question that is cheaper than a plan."""
        return _without(snapshot, self._remembered(snapshot, generations))

    def _remembered(self, snapshot: Snapshot, generations: Mapping[JobId, int]) -> dict[JobId, _PoisonJob]:
        """Their cause may be gone after a while, so they are tried again."""
        return {
            job_id: job
            for job_id, job in self._poison.items()
            if generations.get(job_id) == job.generation and snapshot.now - job.since < _AGAIN
        }


def _without(snapshot: Snapshot, poison: Collection[JobId]) -> Snapshot:
    if not poison:
        return snapshot
    return replace(snapshot, queued=tuple(job for job in snapshot.queued if job.job_id not in poison))


_NO_REPLICAS: Final = Reason(WaitReasonCode.NEVER_FITS, "asks for no replicas at all, so there is nothing to start")


def _without_replicas(snapshot: Snapshot) -> list[QueuedGang]:
    gangs = {job.shape: job.gang for job in snapshot.queued}
    shapes = {shape for shape, gang in gangs.items() if not any(role.replicas for role in gang.roles)}
    return [job for job in snapshot.queued if job.shape in shapes] if shapes else []


def _reason(error: Exception) -> Reason:
    sentence = (
        f"cannot be planned: the planner fails with this job ({type(error).__name__}). It is set aside, and tried "
        "again when it is changed, or in some minutes; the scheduler's log has the details for an administrator"
    )
    return Reason(WaitReasonCode.NEVER_FITS, sentence)


def _bisect(snapshot: Snapshot, plan: Callable[[Snapshot], Plan], error: Exception) -> list[JobId]:
    """Find by bisection the jobs each of which alone makes the planner fail.

    Raises:
        Exception: ``error``, where there are none, or too many, or the planner also fails without them.
    """

    def fails(jobs: Sequence[QueuedGang]) -> bool:
        with suppress(Exception):  # the first error is reported, whatever this one is
            plan(replace(snapshot, queued=tuple(jobs)))
            return False
        return True

    if fails(()):
        raise error
    found: list[JobId] = []
    left: list[Sequence[QueuedGang]] = [snapshot.queued]
    tried = 0
    while left:
        jobs = left.pop()
        tried += 1
        if tried > _MOST_PLANS:
            raise error
        if not fails(jobs):
            continue
        if len(jobs) == 1:
            found += [job.job_id for job in jobs]
        else:
            middle = len(jobs) // 2
            left += [jobs[:middle], jobs[middle:]]
    # Because of a running job or a node the planner may fail whenever any job waits.
    if not found or (len(found) == len(snapshot.queued) and fails([_harmless(snapshot.now)])):
        raise error
    return found


def _harmless(now: datetime) -> QueuedGang:
    gang = Gang((GangRole("worker", 1, ResourceRequest(1, 1)),))
    return QueuedGang(JobId("~"), "harmless", "", "", 0, now, gang, gang.shape())
