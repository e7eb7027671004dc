"""Jobs that the planner cannot plan are set aside, so that one broken job does not stop all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from core.domain.ids import JobId
from scheduler.planning.model import Plan, QueuedGang, Reason, ReasonCode, Snapshot

log = structlog.get_logger(__name__)

# Plans that are made at most to find the broken jobs of one queue: a few among 50,000 take half as many.
_MOST_PLANS: Final = 64


class Aside:
    """Plans without the jobs with which the planner fails; they are remembered as long as they do not change."""

    def __init__(self) -> None:
        self._broken: dict[JobId, tuple[int, Reason]] = {}  # with the generation of the job

    def plan(self, snapshot: Snapshot, generations: Mapping[JobId, int], plan: Callable[[Snapshot], Plan]) -> Plan:
        """The plan; who is set aside waits, and is told why.

        Raises:
            Exception: the planner's own, where no job that waits is the cause of it.
        """
        self._broken = {
            job_id: (generation, reason)
            for job_id, (generation, reason) in self._broken.items()
            if generations.get(job_id) == generation
        }
        for job in _hollow(self._without_broken(snapshot)):
            log.warning("job.set_aside", job=job.job_id, error="it has no replicas")
            self._broken[job.job_id] = (generations.get(job.job_id, 0), _HOLLOW)
        try:
            made = plan(self._without_broken(snapshot))
        except Exception as error:
            log.exception("tick.plan_failed")
            for job_id in _find(self._without_broken(snapshot), plan, error):
                log.warning("job.set_aside", job=job_id, error=repr(error))
                self._broken[job_id] = (generations.get(job_id, 0), _reason(error))
            made = plan(self._without_broken(snapshot))
        if not self._broken:
            return made
        return replace(made, waits={**made.waits, **{job_id: reason for job_id, (_, reason) in self._broken.items()}})

    def _without_broken(self, snapshot: Snapshot) -> Snapshot:
        if not self._broken:
            return snapshot
        return replace(snapshot, queued=tuple(job for job in snapshot.queued if job.job_id not in self._broken))


_HOLLOW: Final = Reason(ReasonCode.NEVER_FITS, "asks for no replicas at all, so there is nothing to start")


def _hollow(snapshot: Snapshot) -> list[QueuedGang]:
    gangs = {job.shape: job.gang for job in snapshot.queued}
    shapes = {shape for shape, gang in gangs.items() if not any(role.replicas for role in gang.roles)}
    return [job for job in snapshot.queued if job.shape in shapes] if shapes else []


def _reason(error: Exception) -> Reason:
    sentence = (
        f"cannot be planned: the planner fails on what this job asks for ({type(error).__name__}). It is set aside until it "
        "is changed; the scheduler's log has the details for an administrator"
    )
    return Reason(ReasonCode.NEVER_FITS, sentence)


def _find(snapshot: Snapshot, plan: Callable[[Snapshot], Plan], error: Exception) -> list[JobId]:
    """The jobs with each of which alone the planner fails, by halving the queue.

    Raises:
        Exception: ``error``, where there are none, or too many.
    """
    found: list[JobId] = []
    left: list[Sequence[QueuedGang]] = [snapshot.queued]
    tried = 0
    while left:
        jobs = left.pop()
        tried += 1
        if tried > _MOST_PLANS:
            raise error
        try:
            plan(replace(snapshot, queued=tuple(jobs)))
        except Exception:  # whatever it is: it is told by the first one
            if len(jobs) <= 1:
                found += [job.job_id for job in jobs]
                if not jobs:
                    raise
            else:
                middle = len(jobs) // 2
                left += [jobs[:middle], jobs[middle:]]
    if not found:
        raise error
    return found
