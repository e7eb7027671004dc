"""Node eligibility: which nodes and GPU models each job may use, given bookings of other projects and quotas per model.

Everything that a plan remembers about a shape is stored under an *eligibility key*: the shape itself if the job may
use all nodes and models that fit, else the shape with the number of its node filter. So a refusal under one key says
nothing about another key.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from scheduler.planning import phrases
from scheduler.planning.model import Booking, QueuedGang, Reason, Snapshot, WaitReasonCode
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.placement.demand import Demand, MemberGroup, demand_of
from scheduler.planning.placement.ledger import NEVER
from scheduler.planning.queue.quota import Allowed, QuotaExcess, Quotas
from scheduler.planning.queue.shares import Shares

_NOTHING: Final[frozenset[int]] = frozenset()


class Bookings:
    """The bookings that are not over, as the nodes that each project loses to other projects, and from when on: nodes
    that administrators reserved for a project are unavailable to the others.
    """

    def __init__(self, snapshot: Snapshot, cluster: ClusterIndex) -> None:
        self._now = snapshot.now
        self._cluster = cluster
        self._all = sorted(
            (b for b in snapshot.bookings if b.ends_at > snapshot.now and b.ends_at > b.begins_at),
            key=lambda b: (b.begins_at, b.ends_at, b.id),
        )
        self._foreign: dict[str, tuple[list[float], list[Booking]]] = {}
        self._hidden: dict[tuple[str, int], frozenset[int]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._all

    def hidden(self, project: str, run_time_s: float) -> frozenset[int]:
        """Nodes unavailable to a job of ``project`` that starts now and runs for at most ``run_time_s`` seconds."""
        if not self._all:
            return _NOTHING
        begins_s, _ = self._of_others(project)
        return self._first(project, bisect_left(begins_s, run_time_s))

    def ever_hidden(self, project: str) -> frozenset[int]:
        """Nodes that are booked for other projects, now or later."""
        return self.hidden(project, NEVER)

    def _first(self, project: str, count: int) -> frozenset[int]:
        key = (project, count)
        hidden = self._hidden.get(key)
        if hidden is None:
            number_of, booked = self._cluster.number_of, self._of_others(project)[1][:count]
            hidden = frozenset(number_of[node] for b in booked for node in b.nodes if node in number_of)
            self._hidden[key] = hidden
        return hidden

    def _of_others(self, project: str) -> tuple[list[float], list[Booking]]:
        """Seconds until each booking begins (-1: has begun, so that no job ends before it), and the bookings."""
        bookings = self._foreign.get(project)
        if bookings is None:
            booked = [b for b in self._all if b.project != project]
            begins_s = [(b.begins_at - self._now).total_seconds() for b in booked]
            bookings = self._foreign[project] = ([begin_s if begin_s > 0 else -1.0 for begin_s in begins_s], booked)
        return bookings

    def reason(self, project: str, run_time_s: float, hidden_nodes: frozenset[int], *, is_free: bool) -> Reason:
        """Why a job may not use the nodes ``hidden_nodes``. ``is_free``: it would fit there now."""
        begins_s, booked = self._of_others(project)
        names = {self._cluster.nodes[number].id for number in hidden_nodes}
        blocking = [b for b in booked[: bisect_left(begins_s, run_time_s)] if not names.isdisjoint(b.nodes)]
        first = blocking[0]
        nodes = sorted(names & first.nodes)
        until = phrases.about(first.ends_at, self._now)
        is_on = first.begins_at <= self._now
        when = f"until {until}" if is_on else f"from {phrases.about(first.begins_at, self._now)} until {until}"
        be = "is" if len(nodes) == 1 else "are"
        fits = "would fit now, but" if is_free else "does not fit without nodes that are not for it:"
        sentence = f"{fits} {phrases.shortlist(nodes)} {be} reserved for project {first.project} ({first.name}) {when}"
        if not is_on:
            sentence += "; with a max_run_time that surely ends before that it could run first"
        numbers = {
            "booking": first.id,
            "name": first.name,
            "project": first.project,
            "nodes": nodes,
            "from": first.begins_at.isoformat(),
            "until": first.ends_at.isoformat(),
        }
        return Reason(WaitReasonCode.BOOKED, sentence, numbers)


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """Excluded nodes (``hidden``) and excluded GPU models (``without``)."""

    hidden: frozenset[int]
    without: frozenset[str]


class Eligibility:
    """The eligibility key of each job, and the demand of each key.

    Attributes:
        is_open: there are no limits and no bookings: the key of every job is its shape. apply_headroom: marks demands
        that must leave the GPU headroom free.
    """

    def __init__(self, snapshot: Snapshot, cluster: ClusterIndex, shares: Shares) -> None:
        self.cluster = cluster
        self.quotas = Quotas(shares)
        self.bookings = Bookings(snapshot, cluster)
        self.is_open = self.quotas.is_empty and self.bookings.is_empty
        self.demands: dict[str, Demand] = {}
        self.apply_headroom: Callable[[Demand], Demand] | None = None
        self._filters: dict[str, NodeFilter] = {}
        self._numbers: dict[tuple[frozenset[int], frozenset[str]], str] = {}

    def key_of(self, job: QueuedGang) -> str | QuotaExcess:
        """The job's eligibility key; a :class:`QuotaExcess` if its quota lets it start nowhere."""
        return self.key_under(job, self.quotas)

    def key_under(self, job: QueuedGang, quotas: Quotas) -> str | QuotaExcess:
        """The same under other ``quotas``."""
        if self.is_open:
            return job.shape
        allowed = quotas.check(job)
        if isinstance(allowed, QuotaExcess):
            return allowed
        run_time_s = job.max_hold_s
        return self._key(job, NodeFilter(self.bookings.hidden(job.project, run_time_s), allowed.without))

    def without_hopeless(self, snapshot: Snapshot, refusal: Callable[[str, Demand], object | None]) -> Snapshot:
        """``snapshot`` without jobs with GPUs that can never start under their limits, or whose nodes are all booked
        for others.

        They do not count as demand; the end of a booking is a plan of its own. Independent of present usage, so that
        starts do not change the result.

        Args:
            refusal: why the empty cluster refuses a demand under a key; ``None`` if it could hold it.
        """
        if self.is_open:
            return snapshot
        decisions: dict[tuple[str, str, str, frozenset[int]], bool] = {}

        def has_hope(job: QueuedGang) -> bool:
            if not job.gang.gpu_milli:  # whether it can run may depend on the workload profile that is being computed
                return True
            hidden = self.bookings.hidden(job.project, job.max_hold_s)
            decision_key = (job.project, job.user, job.shape, hidden)
            is_hopeful = decisions.get(decision_key)
            if is_hopeful is None:
                allowed = self.quotas.check_unused(job)
                is_hopeful = isinstance(allowed, Allowed)
                if isinstance(allowed, Allowed) and (allowed.without or hidden):
                    key = self._key(job, NodeFilter(hidden, allowed.without))
                    is_hopeful = refusal(key, self.demand(job, key)) is None
                decisions[decision_key] = is_hopeful
            return is_hopeful

        return replace(snapshot, queued=tuple(job for job in snapshot.queued if has_hope(job)))

    def key_without_booked_nodes(self, job: QueuedGang, key: str) -> str:
        """The key for a backfill reservation: without all nodes that are ever booked for other projects."""
        ever_hidden = self.bookings.ever_hidden(job.project)
        node_filter = self._filters.get(key, NodeFilter(frozenset(), frozenset()))
        return key if ever_hidden == node_filter.hidden else self._key(job, replace(node_filter, hidden=ever_hidden))

    def filter_of(self, key: str) -> NodeFilter | None:
        """The node filter of a key; ``None``: nothing is excluded."""
        return self._filters.get(key)

    def _key(self, job: QueuedGang, node_filter: NodeFilter) -> str:
        if not node_filter.hidden and not node_filter.without:
            return job.shape
        parts = (node_filter.hidden, node_filter.without)
        key = job.shape + self._numbers.setdefault(parts, f"/{len(self._numbers)}")
        self._filters[key] = node_filter
        return key

    def demand(self, job: QueuedGang, key: str) -> Demand:
        """The demand of ``job`` under its key."""
        demand = self.demands.get(key)
        if demand is None:
            node_filter = self._filters.get(key)
            if node_filter is None:
                demand = demand_of(job.gang, self.cluster)
                demand = demand if self.apply_headroom is None else self.apply_headroom(demand)
            else:
                demand = without(self.demand(job, job.shape), node_filter.hidden, node_filter.without, self.cluster)
            self.demands[key] = demand
        return demand


def without(demand: Demand, hidden: frozenset[int], models: frozenset[str], cluster: ClusterIndex) -> Demand:
    """``demand`` without the nodes ``hidden``, and without GPU ``models`` where its groups accept any other."""
    pool = cluster.pool([n for n in demand.pool.members if n not in hidden]) if hidden else demand.pool
    if not models:
        return replace(demand, pool=pool)

    def narrow(group: MemberGroup) -> MemberGroup:
        return replace(group, models=tuple(m for m in group.models if m not in models) or group.models)

    return replace(
        demand,
        pool=pool,
        merged=tuple(map(narrow, demand.merged)),
        trainers=tuple(map(narrow, demand.trainers)),
    )
