"""Room that others are being stopped for: until it is free, it is held for the job that it was promised to.

Between the plan that stops somebody and the moment at which the place is free, plans are made as if the waiting job had
it: what is free of it already is taken, and what the stopping jobs give back is nobody else's. Nothing is stored but
for whom a job is stopped, and since when room is being made for a job. Where the one who waits is withdrawn, both are
gone with it, and the room is free for all.
"""

from __future__ import annotations

from datetime import datetime

from core.domain.ids import JobId
from scheduler.planning.forecast.reservation import RunningUsage
from scheduler.planning.model import QueuedGang, RunningGang, Snapshot
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.ledger import Ledger
from scheduler.planning.placement.partial import PartialPlacement
from scheduler.planning.preemption.eviction import Evictable, EvictionWhatIf, NodeUse
from scheduler.planning.preemption.policy import PreemptionPolicy
from scheduler.planning.queue.quota import Quotas
from scheduler.planning.queue.shares import Shares, draft_amounts


class Nominations:
    """Jobs to which room was promised (``jobs``), and who is being stopped (``stopping``).

    A promise binds jobs of the same priority and below. Where it keeps what is guaranteed to a project, it binds all.
    """

    def __init__(self, snapshot: Snapshot, holdings: RunningUsage, rights: PreemptionPolicy) -> None:
        stopping = [(gang, held) for gang, held in holdings if gang.is_stopping] if _any_stops(snapshot) else []
        self.stopping: tuple[Evictable, ...] = tuple(_piece(gang, held) for gang, held in stopping)
        self.made_for = {gang.stopping_for for gang, _ in stopping if gang.stopping_for is not None}
        promised = [job for job in snapshot.queued if job.room_since is not None or job.job_id in self.made_for]
        self._rights = rights
        self._due = sorted(promised, key=self._order, reverse=True)
        self.jobs = {job.job_id: job for job in promised}

    def _order(self, job: QueuedGang) -> tuple[object, ...]:
        since: datetime = job.room_since or job.queued_at
        return not self._rights.may_reclaim(job), -job.priority, since, job.queued_at, job.job_id

    def pop_due(self, priority: int) -> QueuedGang | None:
        """The next promised job that comes before all others of ``priority``; each is told once."""
        if not self._due:
            return None
        job = self._due[-1]
        return self._due.pop() if job.priority >= priority or self._rights.may_reclaim(job) else None

    def victims_of(self, job: QueuedGang) -> list[RunningGang]:
        """Who is being stopped for it."""
        mine = [evictable.gang for evictable in self.stopping if evictable.gang.stopping_for == job.job_id]
        return sorted(mine, key=lambda gang: gang.job_id)

    def place_nominated(self, job: QueuedGang, demand: Demand, ledger: Ledger) -> PartialPlacement | None:
        """Where ``job`` will be when those who are being stopped for it are gone; ``None``: that will not be enough."""
        if self._rights.may_reclaim(job):
            what_if = EvictionWhatIf(ledger.free)
        else:
            level = ledger.level(job.max_hold_s)
            what_if = EvictionWhatIf(ledger.views[level], ledger.reserved_nodes)
        # What is stopped for others at last: they may have been placed on what this job counted on.
        for is_its in (lambda who: who == job.job_id, self._is_for_all, lambda _: True):
            what_if.evict(evictable for evictable in self.stopping if is_its(evictable.gang.stopping_for))
            draft = what_if.fits(demand)
            if draft is not None:
                return draft
        return None

    def quotas_after_victims(self, job: QueuedGang, shares: Shares) -> Quotas:
        """What limits leave to ``job`` when those who are being stopped for it are gone."""
        later = shares.copy()
        for gang in self.victims_of(job):
            later.add(gang.project, gang.user, later.running_amounts(gang), -1)
        return Quotas(later)

    def quota_to_hold(
        self, job: QueuedGang, draft: PartialPlacement, shares: Shares
    ) -> tuple[dict[str, int], dict[str, int]]:
        """What of the limits of its project, and of its user, is to be nobody else's until ``job`` has its place: what it will
        hold, less what those who stop for it hold still.
        """
        wanted = draft_amounts(draft)
        of_project, of_user = dict(wanted), dict(wanted)
        for gang in self.victims_of(job):
            for left in (of_project, of_user) if gang.user == job.user else (of_project,):
                if gang.project == job.project:
                    for key, amount in shares.running_amounts(gang).items():
                        left[key] = max(0, left.get(key, 0) - amount)
        return of_project, of_user

    def _is_for_all(self, stopping_for: JobId | None) -> bool:
        return stopping_for is None or stopping_for not in self.jobs


def _any_stops(snapshot: Snapshot) -> bool:
    return any(gang.is_stopping for gang in snapshot.running)


def _piece(gang: RunningGang, held: list[NodeUse]) -> Evictable:
    return Evictable(gang, tuple(held), 0.0)
