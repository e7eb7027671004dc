"""Room that others are being stopped for: until it is free, it is held for the job that it was promised to.

Between the plan that stops somebody and the moment at which the place is free, plans are made as if the waiting job had
it: what is free of it already is taken, and what the stopping jobs give back is nobody else's. Nothing is stored but
for whom a job is stopped, and since when room is being made for a job. Where the one who waits is withdrawn, both are
gone with it, and the room is free for all.
"""

from __future__ import annotations

from datetime import datetime

from core.domain.ids import JobId
from scheduler.planning.forecast.reservation import Holdings
from scheduler.planning.model import QueuedGang, RunningGang, Snapshot
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.ledger import Ledger
from scheduler.planning.placement.partial import Draft
from scheduler.planning.preemption.eviction import Clearing, Held, Piece
from scheduler.planning.preemption.policy import Rights
from scheduler.planning.queue.quota import Quotas
from scheduler.planning.queue.shares import Shares, of_draft


class Promises:
    """Jobs to which room was promised (``jobs``), and who is being stopped (``stopping``).

    A promise binds jobs of the same priority and below. Where it keeps what is guaranteed to a project, it binds all.
    """

    def __init__(self, snapshot: Snapshot, holdings: Holdings, rights: Rights) -> None:
        stopping = [(gang, held) for gang, held in holdings if gang.is_stopping] if _any_stops(snapshot) else []
        self.stopping: tuple[Piece, ...] = tuple(_piece(gang, held) for gang, held in stopping)
        self.made_for = {gang.stopping_for for gang, _ in stopping if gang.stopping_for is not None}
        promised = [job for job in snapshot.queued if job.room_since is not None or job.job_id in self.made_for]
        self._rights = rights
        self._due = sorted(promised, key=self._order, reverse=True)
        self.jobs = {job.job_id: job for job in promised}

    def _order(self, job: QueuedGang) -> tuple[object, ...]:
        since: datetime = job.room_since or job.queued_at
        return not self._rights.is_owed(job), -job.priority, since, job.queued_at, job.job_id

    def next_before(self, priority: int) -> QueuedGang | None:
        """The next promised job that comes before all others of ``priority``; each is told once."""
        if not self._due:
            return None
        job = self._due[-1]
        return self._due.pop() if job.priority >= priority or self._rights.is_owed(job) else None

    def still_stopping(self, job: QueuedGang) -> list[RunningGang]:
        """Who is being stopped for it."""
        mine = [piece.gang for piece in self.stopping if piece.gang.stopping_for == job.job_id]
        return sorted(mine, key=lambda gang: gang.job_id)

    def room_for(self, job: QueuedGang, demand: Demand, ledger: Ledger) -> Draft | None:
        """Where ``job`` will be when those who are being stopped for it are gone; ``None``: that will not be enough."""
        if self._rights.is_owed(job):
            clearing = Clearing(ledger.free)
        else:
            level = ledger.level(job.holds_s)
            clearing = Clearing(ledger.views[level], ledger.held_nodes)
        # What is stopped for others at last: they may have been placed on what this job counted on.
        for is_its in (lambda who: who == job.job_id, self._is_for_all, lambda _: True):
            clearing.clear(piece for piece in self.stopping if is_its(piece.gang.stopping_for))
            draft = clearing.fits(demand)
            if draft is not None:
                return draft
        return None

    def quotas_for(self, job: QueuedGang, shares: Shares) -> Quotas:
        """What limits leave to ``job`` when those who are being stopped for it are gone."""
        later = shares.copy()
        for gang in self.still_stopping(job):
            later.add(gang.project, gang.user, later.of_running(gang), -1)
        return Quotas(later)

    def held_back(self, job: QueuedGang, draft: Draft, shares: Shares) -> tuple[dict[str, int], dict[str, int]]:
        """What of the limits of its project, and of its user, is to be nobody else's until ``job`` has its place: what it will
        hold, less what those who stop for it hold still.
        """
        wanted = of_draft(draft)
        of_project, of_user = dict(wanted), dict(wanted)
        for gang in self.still_stopping(job):
            for left in (of_project, of_user) if gang.user == job.user else (of_project,):
                if gang.project == job.project:
                    for key, amount in shares.of_running(gang).items():
                        left[key] = max(0, left.get(key, 0) - amount)
        return of_project, of_user

    def _is_for_all(self, stopping_for: JobId | None) -> bool:
        return stopping_for is None or stopping_for not in self.jobs


def _any_stops(snapshot: Snapshot) -> bool:
    return any(gang.is_stopping for gang in snapshot.running)


def _piece(gang: RunningGang, held: list[Held]) -> Piece:
    return Piece(gang, tuple(held), 0.0)
