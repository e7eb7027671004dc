"""Nominations (kube-scheduler: nominated node): room that victims free is held for the job that preempted them.

From the plan that stops victims until their resources are free, the planner treats the nominated job as placed: it
takes the free part of its room, and what the victims release belongs to it alone. Only two things are stored: for
which job a victim is stopped, and since when room is made for a job. If the nominated job is withdrawn, both vanish
with it, and the room is free for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from core.domain.ids import JobId
from scheduler.planning.model import QueuedGang, RunningGang, Snapshot
from scheduler.planning.placement.backfill import RunningUsage
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.ledger import Ledger
from scheduler.planning.placement.partial import PartialPlacement
from scheduler.planning.preemption.eviction import Evictable, EvictionWhatIf
from scheduler.planning.preemption.policy import PreemptionPolicy
from scheduler.planning.queue.quota import Quotas
from scheduler.planning.queue.shares import Shares


class Nominations:
    """The nominated jobs (``jobs``) and the victims that are stopping.

    A nomination takes precedence over jobs of the same or lower priority. If it serves a project's guarantee, it
    takes precedence over all jobs.
    """

    def __init__(self, snapshot: Snapshot, running_usage: RunningUsage, preemption_policy: PreemptionPolicy) -> None:
        is_any_stopping = any(gang.is_stopping for gang in snapshot.running)
        stopping = [(gang, uses) for gang, uses in running_usage if gang.is_stopping] if is_any_stopping else []
        self.victims: tuple[Evictable, ...] = tuple(Evictable(gang, tuple(uses), 0.0) for gang, uses in stopping)
        self.preemptors = {gang.stopping_for for gang, _ in stopping if gang.stopping_for is not None}
        nominated = [job for job in snapshot.queued if job.room_since is not None or job.job_id in self.preemptors]
        self.preemption_policy = preemption_policy
        self._due = sorted(nominated, key=self._order, reverse=True)
        self.jobs = {job.job_id: job for job in nominated}

    def _order(self, job: QueuedGang) -> tuple[object, ...]:
        since: datetime = job.room_since or job.queued_at
        return not self.preemption_policy.may_reclaim(job), -job.priority, since, job.queued_at, job.job_id

    def pop_due(self, priority: int) -> QueuedGang | None:
        """The next nominated job that precedes all other jobs of ``priority``; each is returned once."""
        if not self._due:
            return None
        job = self._due[-1]
        return self._due.pop() if job.priority >= priority or self.preemption_policy.may_reclaim(job) else None

    def victims_of(self, job: QueuedGang) -> list[RunningGang]:
        """The victims that are stopping for ``job``."""
        victims = [victim.gang for victim in self.victims if victim.gang.stopping_for == job.job_id]
        return sorted(victims, key=lambda gang: gang.job_id)

    def place_nominated(self, job: QueuedGang, demand: Demand, ledger: Ledger) -> PartialPlacement | None:
        """Placement of ``job`` once its victims are gone; ``None`` if their room does not suffice."""
        if self.preemption_policy.may_reclaim(job):
            what_if = EvictionWhatIf(ledger.free)
        else:
            level = ledger.level(job.max_hold_s)
            what_if = EvictionWhatIf(ledger.views[level], ledger.reserved_nodes)
        # Victims of other preemptors come last: those preemptors may have been placed on what this job counted on.
        for is_counted in (lambda preemptor: preemptor == job.job_id, self._is_for_all, lambda _: True):
            what_if.evict(victim for victim in self.victims if is_counted(victim.gang.stopping_for))
            draft = what_if.fits(demand)
            if draft is not None:
                return draft
        return None

    def quotas_after_victims(self, job: QueuedGang, shares: Shares) -> Quotas:
        """The quotas as they will be for ``job`` when its victims are gone."""
        later = shares.copy()
        for gang in self.victims_of(job):
            later.add(gang.project, gang.user, later.running_amounts(gang), -1)
        return Quotas(later)

    def shares_after(self, shares: Shares, nominated: Mapping[JobId, PartialPlacement]) -> Shares:
        """Amounts held once all decisions have taken effect: victims are gone, and ``nominated`` jobs in their places.

        With the present amounts, a project would lose more than it borrowed while its first victim is still stopping.
        """
        later = shares.copy()
        for victim in self.victims:
            later.add(victim.gang.project, victim.gang.user, later.running_amounts(victim.gang), -1)
        for job_id, draft in nominated.items():
            job = self.jobs[job_id]
            later.add(job.project, job.user, draft.quota_amounts())
        return later

    def quota_to_hold(
        self, job: QueuedGang, draft: PartialPlacement, shares: Shares
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Quota to hold for ``job`` until it starts, for its project and for its user.

        It is the amount of its future placement minus what its victims still hold.
        """
        of_project = draft.quota_amounts()
        of_user = dict(of_project)
        for gang in self.victims_of(job):
            for amounts in (of_project, of_user) if gang.user == job.user else (of_project,):
                if gang.project == job.project:
                    for key, amount in shares.running_amounts(gang).items():
                        amounts[key] = max(0, amounts.get(key, 0) - amount)
        return of_project, of_user

    def _is_for_all(self, stopping_for: JobId | None) -> bool:
        return stopping_for is None or stopping_for not in self.jobs
