"""Growth of elastic gangs: extra replicas where room is free that no waiting job could ever use.

A waiting gang has the better claim, whatever its priority, since a grown gang by itself returns replicas to other
elastic gangs alone (:mod:`.elastic_balance`). So no elastic gang grows onto a node that a queued job might be given,
and growth delays no job. Replicas are granted one by one to the gang with the best claim at that moment, within quotas
and outside bookings of other projects. Among equals in priority and share that is the gang that the replica speeds up
most, per GPU. A gang whose measured speed has saturated gets none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heapreplace

from core.domain.ids import JobId, NodeId
from core.domain.jobs.speed_curve import UNMEASURED, SpeedCurve
from core.domain.sharing.resources import Gang, GangRole
from scheduler.planning.elastic_balance import balance, weights_of
from scheduler.planning.model import Grow, GrowingGang, Placement, QueuedGang, RunningGang, Shrink, Snapshot, Start
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.placement.demand import Demand, demand_of
from scheduler.planning.placement.eligibility import Eligibility, without
from scheduler.planning.placement.gang import place
from scheduler.planning.placement.ledger import NEVER, Ledger
from scheduler.planning.placement.partial import PartialPlacement
from scheduler.planning.placement.search import SearchBudget
from scheduler.planning.queue.quota import QuotaExcess, Quotas
from scheduler.planning.queue.shares import JOBS, Shares

_Key = tuple[int, float, float, float, float, str]


@dataclass(slots=True)
class Growth:
    """An elastic gang that runs, or starts in this plan; ``added``: the replicas that it gets.

    ``weight``: the factor by which its gain counts. ``age``: queueing time in seconds, compared after priority, shares
    and gain. ``lacking``: indices of its missing replicas, the next one first. ``placed``: node and GPU model of its
    elastic replicas. ``hidden``: nodes that are booked for others.
    """

    job_id: JobId
    project: str
    user: str
    priority: int
    age: float
    gang: Gang
    role: GangRole
    lacking: list[int]
    placed: list[tuple[NodeId, str | None]]
    hidden: frozenset[int] = frozenset()
    speed: SpeedCurve = UNMEASURED
    weight: float = 1.0
    added: list[Placement] = field(default_factory=list)

    @property
    def may_grow(self) -> bool:
        """Whether replicas are missing that would make it faster."""
        return bool(self.lacking) and not self.speed.is_saturated(len(self.placed))

    @property
    def gain(self) -> float:
        """Relative gain in speed by the next replica, per GPU."""
        request = self.role.request
        return self.weight * self.speed.gain(len(self.placed)) / (request.gpu_count + request.gpu_milli / 1000 or 1.0)

    @classmethod
    def of_start(
        cls, job: QueuedGang, role: GangRole, placements: Iterable[Placement], hidden: frozenset[int]
    ) -> Growth:
        """A gang that this plan starts with its minimum of replicas."""
        placed = [(p.node, p.gpu_model) for p in placements if p.role == role.role]
        lacking = list(range(role.replicas, role.most or 0))
        age = job.queued_at.timestamp()
        return cls(
            job.job_id, job.project, job.user, job.priority, age, job.gang, role, lacking, placed, hidden, job.speed
        )

    @classmethod
    def of_running(
        cls, job: GrowingGang, role: GangRole, running: RunningGang | None, hidden: frozenset[int]
    ) -> Growth:
        project, user = (running.project, running.user) if running is not None else ("", "")
        age = job.queued_at.timestamp()
        lacking, placed = list(job.indices), list(job.placed)
        return cls(job.job_id, project, user, job.priority, age, job.gang, role, lacking, placed, hidden, job.speed)


class Grower:
    """Grants replicas and updates ``shares`` with each."""

    def __init__(self, cluster: ClusterIndex, shares: Shares, quotas: Quotas) -> None:
        self.cluster = cluster
        self.shares = shares
        self.quotas = quotas
        self._demands: dict[tuple[object, ...], Demand] = {}
        self._refused: set[int] = set()  # ids of demands that found no place

    def grow(self, growths: Iterable[Growth], ledger: Ledger, claimed: frozenset[int]) -> bool:
        """Grant all replicas that may be granted, taken from ``ledger``; whether there were any.

        Args:
            claimed: nodes that some waiting job may ever use.
        """
        # The GPU headroom may have shrunk since.
        self._refused -= {id(demand) for demand in self._demands.values() if demand.respects_headroom}
        heap = [(self._key(growth), growth) for growth in growths if growth.may_grow]
        heapify(heap)
        has_grown = False
        while heap:
            key, growth = heap[0]
            if (key_now := self._key(growth)) > key:
                heapreplace(heap, (key_now, growth))  # its user got replicas for another gang meanwhile
                continue
            if not self._give(growth, ledger, claimed):
                heappop(heap)
                continue
            has_grown = True
            if growth.may_grow:
                heapreplace(heap, (self._key(growth), growth))
            else:
                heappop(heap)
        return has_grown

    def _key(self, growth: Growth) -> _Key:
        project_share = user_share = 0.0
        if self.shares.policy.is_fair:
            project_share = self.shares.project_share(growth.project)
            user_share = self.shares.user_share(growth.project, growth.user)
        return -growth.priority, project_share, user_share, -growth.gain, growth.age, growth.job_id

    def claim_of(self, gang: RunningGang) -> tuple[float, ...]:
        """Its priority and the share of its user: the smaller, the better its claim among those of its project."""
        share = self.shares.user_share(gang.project, gang.user) if self.shares.policy.is_fair else 0.0
        return -gang.priority, share

    def nodes_of(self, growth: Growth, claimed: frozenset[int]) -> frozenset[int]:
        """Nodes on which it may get a replica; none beyond its quota."""
        role = self._role(growth)
        allowed = self.quotas.check_replica(growth.project, growth.user, role)
        if isinstance(allowed, QuotaExcess):
            return frozenset()
        demand = self._demand(growth, role, growth.hidden | claimed, allowed.without)
        nodes = demand.touched_nodes(self.cluster)
        if growth.gang.servers != "apart":
            return nodes
        return nodes & {self.cluster.number_of.get(node, -1) for node, _ in growth.placed}

    @staticmethod
    def _role(growth: Growth) -> GangRole:
        models = {model for _, model in growth.placed if model is not None}
        if len(models) != 1:
            return growth.role
        # Mixed GPU models would slow the whole gang down.
        return replace(growth.role, request=replace(growth.role.request, gpu_models=tuple(models)))

    def _give(self, growth: Growth, ledger: Ledger, claimed: frozenset[int]) -> bool:
        role = self._role(growth)
        allowed = self.quotas.check_replica(growth.project, growth.user, role)
        if isinstance(allowed, QuotaExcess):
            return False
        demand = self._demand(growth, role, growth.hidden | claimed, allowed.without)
        draft = self._draft(demand, growth, ledger)
        if draft is None:
            return False
        ledger.start(draft, NEVER)
        amounts = draft.quota_amounts()
        del amounts[JOBS]
        self.shares.add(growth.project, growth.user, amounts)
        for placement in draft.placements(demand):
            growth.added.append(replace(placement, role=growth.role.role, index=growth.lacking.pop(0)))
            growth.placed.append((placement.node, placement.gpu_model))
        return True

    def _demand(self, growth: Growth, role: GangRole, hidden: frozenset[int], models: frozenset[str]) -> Demand:
        """The demand of one more replica. Equal replicas of other jobs share it, since filtering nodes looks at each
        node.
        """
        key = (growth.gang.node_selector, role.request, hidden, models, not growth.gang.gpu_milli)
        demand = self._demands.get(key)
        if demand is None:
            single_replica = Gang((GangRole(role.role, 1, role.request),), growth.gang.node_selector)
            demand = without(demand_of(single_replica, self.cluster), hidden, models, self.cluster)
            # Extra replicas are never worth the GPU headroom.
            demand = self._demands[key] = replace(demand, respects_headroom=not growth.gang.gpu_milli)
        return demand

    def _draft(self, demand: Demand, growth: Growth, ledger: Ledger) -> PartialPlacement | None:
        """Its own nodes first: the fewer nodes, the less network traffic."""
        if id(demand) in self._refused:
            return None  # nothing becomes free within a plan
        number_of = self.cluster.number_of
        flags = demand.pool.flags
        own_nodes = {number_of[node] for node, _ in growth.placed if node in number_of}
        own_pool = self.cluster.pool(sorted(number for number in own_nodes if flags[number]))
        draft = place(replace(demand, pool=own_pool), ledger.free, SearchBudget())
        if draft is None and growth.gang.servers == "apart":
            return None  # any other node may hold one of its parameter servers
        draft = draft if draft is not None else place(demand, ledger.free, SearchBudget())
        if draft is None:
            self._refused.add(id(demand))
        return draft


class ElasticGrowth:
    """Growth of the elastic gangs of one snapshot: of those that start in this plan, and of those that run."""

    def __init__(self, snapshot: Snapshot, eligibility: Eligibility, cluster: ClusterIndex, shares: Shares) -> None:
        self.snapshot = snapshot
        self.eligibility = eligibility
        self._grower = Grower(cluster, shares, eligibility.quotas)
        self._growths: dict[JobId, Growth] = {}
        self._weights: dict[JobId, float] = {}

    def grow(
        self, starts: Iterable[tuple[QueuedGang, PartialPlacement]], ledger: Ledger, claimed: frozenset[int]
    ) -> bool:
        """Grant replicas on nodes that no waiting job could use; whether there were any."""
        self._add_starts(starts)
        self._add_running()
        if not self._growths:
            return False
        elastic = [gang for gang in self.snapshot.running if gang.gang.elastic is not None and not gang.is_stopping]
        starting = [job for job, _ in starts if job.job_id in self._growths]
        self._weights = weights_of((*elastic, *starting), self.snapshot.policy, self.snapshot.now)
        for growth in self._growths.values():
            growth.weight = self._weights.get(growth.job_id, 1.0)
        return self._grower.grow(self._growths.values(), ledger, claimed)

    def _add_starts(self, starts: Iterable[tuple[QueuedGang, PartialPlacement]]) -> None:
        for job, draft in starts:
            role = job.gang.elastic
            if role is not None and job.job_id not in self._growths:
                hidden = self.eligibility.bookings.hidden(job.project, job.max_hold_s)
                placements = draft.placements(self.eligibility.demand(job, job.shape))
                self._growths[job.job_id] = Growth.of_start(job, role, placements, hidden)

    def _add_running(self) -> None:
        snapshot = self.snapshot
        if not snapshot.growing or any(job.job_id in self._growths for job in snapshot.growing):
            return
        running = {gang.job_id: gang for gang in snapshot.running}
        for growing in snapshot.growing:
            role, gang = growing.gang.elastic, running.get(growing.job_id)
            if role is not None and not (gang is not None and self._is_evicted_by_booking(gang)):
                end = gang.expected_end if gang is not None else None
                left_s = NEVER if end is None else (end - snapshot.now).total_seconds()
                hidden = self.eligibility.bookings.hidden(gang.project if gang is not None else "", left_s)
                self._growths[growing.job_id] = Growth.of_running(growing, role, gang, hidden)

    def _is_evicted_by_booking(self, gang: RunningGang) -> bool:
        """Whether it is on a node that is reserved for another project by now, so that it is about to stop."""
        now, nodes = self.snapshot.now, {node for _, node in gang.nodes}
        return any(
            booking.begins_at <= now < booking.ends_at
            and booking.project != gang.project
            and not booking.nodes.isdisjoint(nodes)
            for booking in self.snapshot.bookings
        )

    def starts(self, starts: Iterable[tuple[QueuedGang, PartialPlacement]]) -> tuple[Start, ...]:
        """The starts of the plan, with the replicas that they grow by."""
        with_growth = []
        for job, draft in starts:
            placements = draft.placements(self.eligibility.demand(job, job.shape))
            growth = self._growths.get(job.job_id)
            added = () if growth is None else growth.added
            with_growth.append(Start(job.job_id, in_rank_order(placements, added, job.gang) if added else placements))
        return tuple(with_growth)

    def balance(self, claimed: frozenset[int]) -> tuple[Shrink, ...]:
        """Replicas that leave running gangs for others that found no room to grow."""
        number_of = self._grower.cluster.number_of
        running = {gang.job_id: gang for gang in self.snapshot.running}
        nodes = {
            growth.job_id: self._grower.nodes_of(growth, claimed)
            for growth in self._growths.values()
            if growth.may_grow and not growth.added and growth.job_id in running
        }
        return balance(
            self.snapshot,
            [running[job_id] for job_id in nodes],
            claim_of=self._grower.claim_of,
            may_use=lambda gang, node: number_of.get(node, -1) in nodes[gang.job_id],
            changed={growth.job_id for growth in self._growths.values() if growth.added},
            weights=self._weights,
        )

    def grows(self) -> tuple[Grow, ...]:
        """The growth of running gangs."""
        return tuple(
            Grow(job_id, tuple(growth.added))
            for job_id in sorted(job.job_id for job in self.snapshot.growing)
            if (growth := self._growths.get(job_id)) is not None and growth.added
        )


def in_rank_order(placements: Sequence[Placement], added: Sequence[Placement], gang: Gang) -> tuple[Placement, ...]:
    """All placements in rank order."""
    order: Mapping[str, int] = {role.role: number for number, role in enumerate(gang.roles)}
    return tuple(sorted((*placements, *added), key=lambda p: (order[p.role], p.index)))
