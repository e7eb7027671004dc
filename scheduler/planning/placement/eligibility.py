"""What of the cluster each job may use: without nodes that are booked for others, and models of which it has its quota.

Everything that a plan remembers of a shape it remembers under a *sight*: the shape itself where a job may use all that
fits it, else the shape with what is left out. So a refusal in one sight says nothing about another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from scheduler.planning.model import QueuedGang, Snapshot
from scheduler.planning.placement.bookings import Bookings
from scheduler.planning.placement.cluster import Cluster
from scheduler.planning.placement.demand import Demand, Group, demand_of
from scheduler.planning.queue.quota import Allowed, Excess, Quotas
from scheduler.planning.queue.shares import Shares


@dataclass(frozen=True, slots=True)
class Narrow:
    """What is left out: nodes, and GPU models."""

    hidden: frozenset[int]
    without: frozenset[str]


class Sights:
    """The sight of each job, and the demand of each sight.

    Attributes:
        is_open: there are no limits and no bookings: the sight of every job is its shape.
        bind: makes a demand keep off what is kept for GPUs, where it has to.
    """

    def __init__(self, snapshot: Snapshot, cluster: Cluster, shares: Shares) -> None:
        self.cluster = cluster
        self.quotas = Quotas(shares)
        self.bookings = Bookings(snapshot, cluster)
        self.is_open = self.quotas.is_empty and self.bookings.is_empty
        self.demands: dict[str, Demand] = {}
        self.bind: Callable[[Demand], Demand] | None = None
        self._narrow: dict[str, Narrow] = {}
        self._numbers: dict[tuple[frozenset[int], frozenset[str]], str] = {}

    def of(self, job: QueuedGang) -> str | Excess:
        """The job's sight; an :class:`Excess` where its quota does not let it start whatever is free."""
        return self.by(job, self.quotas)

    def by(self, job: QueuedGang, quotas: Quotas) -> str | Excess:
        """The same where others hold what ``quotas`` know of."""
        if self.is_open:
            return job.shape
        allowed = quotas.look(job)
        if isinstance(allowed, Excess):
            return allowed
        run_time_s = job.holds_s
        return self._named(job, Narrow(self.bookings.hidden(job.project, run_time_s), allowed.without))

    def with_hope(self, snapshot: Snapshot, refusal: Callable[[str, Demand], object | None]) -> Snapshot:
        """``snapshot`` without the jobs with GPUs that their limits never let start, whatever is given back, and those whose
        nodes are all reserved for others: until that is over, which is a plan of its own, they use none of them.

        That does not hang on who holds what: it stays so whoever starts.

        Args:
            refusal: of a demand in a sight by the empty cluster; ``None`` if that could hold it.
        """
        if self.is_open:
            return snapshot
        known: dict[tuple[str, str, str, frozenset[int]], bool] = {}

        def has_hope(job: QueuedGang) -> bool:
            if not job.gang.gpu_milli:  # whether it can run may hang on what is typical, for which this is asked
                return True
            hidden = self.bookings.hidden(job.project, job.holds_s)
            key = (job.project, job.user, job.shape, hidden)
            found = known.get(key)
            if found is None:
                allowed = self.quotas.at_best(job)
                found = isinstance(allowed, Allowed)
                if isinstance(allowed, Allowed) and (allowed.without or hidden):
                    sight = self._named(job, Narrow(hidden, allowed.without))
                    found = refusal(sight, self.demand(job, sight)) is None
                known[key] = found
            return found

        return replace(snapshot, queued=tuple(job for job in snapshot.queued if has_hope(job)))

    def later(self, job: QueuedGang, sight: str) -> str:
        """The sight in which a reservation may be made: without all nodes that are ever booked for others."""
        ever = self.bookings.ever_hidden(job.project)
        narrow = self._narrow.get(sight, Narrow(frozenset(), frozenset()))
        return sight if ever == narrow.hidden else self._named(job, replace(narrow, hidden=ever))

    def narrowed(self, sight: str) -> Narrow | None:
        """What is left out; ``None``: nothing."""
        return self._narrow.get(sight)

    def _named(self, job: QueuedGang, narrow: Narrow) -> str:
        if not narrow.hidden and not narrow.without:
            return job.shape
        parts = (narrow.hidden, narrow.without)
        sight = job.shape + self._numbers.setdefault(parts, f"/{len(self._numbers)}")
        self._narrow[sight] = narrow
        return sight

    def demand(self, job: QueuedGang, sight: str) -> Demand:
        """What ``job`` asks for, in its sight."""
        demand = self.demands.get(sight)
        if demand is None:
            narrow = self._narrow.get(sight)
            if narrow is None:
                demand = demand_of(job.gang, self.cluster)
                demand = demand if self.bind is None else self.bind(demand)
            else:
                demand = without(self.demand(job, job.shape), narrow.hidden, narrow.without, self.cluster)
            self.demands[sight] = demand
        return demand


def without(demand: Demand, hidden: frozenset[int], models: frozenset[str], cluster: Cluster) -> Demand:
    """``demand`` on other nodes than ``hidden``, and on other GPU models where its groups accept any other."""
    pool = cluster.pool([n for n in demand.pool.members if n not in hidden]) if hidden else demand.pool
    if not models:
        return replace(demand, pool=pool)

    def narrow(group: Group) -> Group:
        return replace(group, models=tuple(m for m in group.models if m not in models) or group.models)

    return replace(
        demand,
        pool=pool,
        merged=tuple(map(narrow, demand.merged)),
        trainers=tuple(map(narrow, demand.trainers)),
    )
