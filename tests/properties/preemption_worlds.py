"""Random worlds in which jobs come, run, are stopped and end: what the properties of preemption are tried on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random

from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import (
    Account,
    Booking,
    Defragment,
    Estimate,
    NodeSnapshot,
    Plan,
    Policy,
    QueuedGang,
    QueueOrder,
    Quota,
    Snapshot,
    plan,
)
from scheduler.simulator.cluster import SimulatedCluster
from tests.properties.planner_worlds import NOW

PRIORITIES = (10, 50, 90)


@dataclass(slots=True)
class Life:
    """What a job needs and has had, in seconds of running."""

    needs_s: float
    had_s: float = 0.0
    preempted: int = 0
    starts: int = 0


@dataclass
class Story:
    """One world and what happens in it, from a seed. ``plans``: every snapshot with its plan, the newest last."""

    seed: int
    policy: Policy | None = None
    ends: bool = True
    books: bool = True
    parts: bool = True
    now: datetime = NOW
    lives: dict[JobId, Life] = field(default_factory=dict)
    plans: list[tuple[Snapshot, Plan]] = field(default_factory=list)
    last_arrival: datetime = NOW
    arrived: int = 0

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        chance = self.chance
        self.policy = self.policy or any_policy(chance)
        sizes = [chance.randint(2, 8) for _ in range(chance.randint(1, 3))]
        wholes = [Amounts(16, 16, {chance.choice(["h100", "h100", "a100"]): size}) for size in sizes]
        nodes = [NodeSnapshot(NodeId(f"n{number}"), {}, whole, whole) for number, whole in enumerate(wholes)]
        self.has_parts = chance.random() < 0.3 and self.parts
        total = left = sum(sizes)
        accounts = []
        for name in ("red", "green", "blue"):
            guaranteed: dict[str, int] = {}
            if chance.random() < 0.5 and left > 0:
                gpus = chance.randint(1, left)
                left -= gpus
                guaranteed = {"gpu_milli": 1000 * gpus}
            quota = Quota(any_limit(chance, total, 0.25), guaranteed, any_limit(chance, total, 0.15))
            usage = chance.random()
            accounts.append(Account(name, chance.choice([1.0, 1.0, 2.0]), quota, usage, {"ann": usage}))
        bookings = [any_booking(chance, nodes)] if self.books and chance.random() < 0.2 else []
        self.world = SimulatedCluster(nodes, policy=self.policy, accounts=accounts, bookings=bookings)

    def arrive(self) -> None:
        chance = self.chance
        members, gpus = chance.choice([(1, 1), (1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (3, 2)])
        most = members + chance.randint(1, 3) if chance.random() < 0.15 else None
        request = ResourceRequest(1, 1, gpus)
        if self.has_parts and gpus == 1 and chance.random() < 0.5:
            request = ResourceRequest(1, 1, gpu_milli=chance.choice([250, 500, 500]))
        gang = Gang((GangRole("worker", members, request, most),))
        needs_s = float(chance.choice([100, 400, 1000, 3000]))
        job_id = JobId(f"j{self.arrived:03}")
        self.arrived += 1
        self.lives[job_id] = Life(needs_s)
        self.last_arrival = self.now
        known = chance.random() < 0.5
        job = QueuedGang(
            job_id=job_id,
            name=job_id,
            project=chance.choice(["red", "green", "blue"]),
            user=chance.choice(["ann", "bob"]),
            priority=chance.choice(PRIORITIES),
            queued_at=self.now,
            gang=gang,
            shape=gang.shape(),
            max_run_time_s=chance.choice([None, None, 5000.0]),
            estimate=Estimate(needs_s, needs_s, needs_s) if known else None,
        )
        self.world.enqueue(job)

    def snapshot(self) -> Snapshot:
        """With what is known now of those that run."""
        for job_id, running in self.world.running.items():
            view = running.view()
            life = self.lives[job_id]
            ran_s = (self.now - running.started_at).total_seconds()
            estimate = view.estimate
            if estimate is not None:
                left = max(1.0, life.needs_s - life.had_s - ran_s)
                estimate = Estimate(left, left, left)
            attained = (life.had_s + ran_s) * gpus_of(running.job.gang)
            lost = (ran_s % 500) * gpus_of(running.job.gang)  # it saves every 500 s
            self.world.update_view(replace(view, attained_gpu_s=attained, estimate=estimate, lost_gpu_s=lost))
        return self.world.snapshot(self.now)

    def plan(self) -> Plan:
        snapshot = self.snapshot()
        made = plan(snapshot)
        self.plans.append((snapshot, made))
        self.world.apply(made, self.now)
        for start in made.starts:
            self.lives[start.job_id].starts += 1
        return made

    def step(self, seconds: float) -> None:
        """Let time pass: jobs end, and those that were told to stop wait again. A plan after each such moment."""
        until = self.now + timedelta(seconds=seconds)
        while True:
            moments = [at for job_id in self.world.running if (at := self._leaves_at(job_id)) <= until]
            if not moments:
                break
            self.now = max(self.now, min(moments))
            for job_id in [job_id for job_id in self.world.running if self._leaves_at(job_id) <= self.now]:
                self._leave(job_id)
            self.plan()
        self.now = until

    def _leaves_at(self, job_id: JobId) -> datetime:
        running, life = self.world.running[job_id], self.lives[job_id]
        ends = running.started_at + timedelta(seconds=life.needs_s - life.had_s)
        if not self.ends:
            ends = datetime.max.replace(tzinfo=ends.tzinfo)
        return ends if running.stops_at is None else min(ends, running.stops_at)

    def _leave(self, job_id: JobId) -> None:
        running, life = self.world.running[job_id], self.lives[job_id]
        had_s = (self.now - running.started_at).total_seconds()
        life.had_s += had_s
        if self.ends and life.had_s >= life.needs_s - 1e-6:
            self.world.finish(job_id)
            return
        life.preempted += 1
        estimate = running.job.estimate
        if estimate is not None:
            left = max(1.0, life.needs_s - life.had_s)
            estimate = Estimate(left, left, left)
        attained = life.had_s * gpus_of(running.job.gang)
        again = replace(
            running.job,
            attained_gpu_s=attained,
            earlier_s=life.had_s,
            estimate=estimate,
            waits_since=self.now,
            room_since=None,
        )
        self.world.release(job_id, again)

    def gone(self, job_id: JobId) -> None:
        """A waiting job is withdrawn."""
        self.world.queued.pop(job_id)

    def counts(self) -> Counter[JobId]:
        return Counter({job_id: life.preempted for job_id, life in self.lives.items()})


class OfModels(Story):
    """The same with nodes of two models, guarantees of single ones of them, and jobs that ask for one or for any."""

    def __post_init__(self) -> None:
        super().__post_init__()
        chance = self.chance
        sizes = [chance.randint(2, 8) for _ in range(chance.randint(2, 4))]
        wholes = [Amounts(16, 16, {("h100", "a100")[number % 2]: size}) for number, size in enumerate(sizes)]
        self.world = SimulatedCluster(
            [NodeSnapshot(NodeId(f"n{number}"), {}, whole, whole) for number, whole in enumerate(wholes)],
            policy=self.policy,
            accounts=[self._with_models(account, sum(sizes)) for account in self.world.accounts],
        )

    def _with_models(self, account: Account, total: int) -> Account:
        chance = self.chance
        guaranteed = {"gpu_milli": 1000 * chance.randint(1, total // 2)} if chance.random() < 0.7 else {}
        for model in ("h100", "a100"):
            if chance.random() < 0.5:
                guaranteed[f"gpu_milli/{model}"] = 1000 * chance.randint(1, max(1, total // 3))
        return replace(account, quota=replace(account.quota, guaranteed=guaranteed))

    def arrive(self) -> None:
        super().arrive()
        last = max(self.world.queued)
        job = self.world.queued[last]
        (role,) = job.gang.roles
        wish = self.chance.choice([("h100",), ("h100",), ("a100",), ()])
        gang = Gang((replace(role, request=replace(role.request, gpu_models=wish)),))
        self.world.queued[last] = replace(job, gang=gang, shape=gang.shape())


def gpus_of(gang: Gang) -> float:
    return float(gang.gpu_count or 1)


def any_limit(chance: Random, total: int, often: float) -> dict[str, int]:
    if chance.random() >= often:
        return {}
    return chance.choice([{"jobs": chance.randint(1, 3)}, {"gpu_milli": 1000 * chance.randint(1, total)}])


def any_booking(chance: Random, nodes: list[NodeSnapshot]) -> Booking:
    begins = NOW + timedelta(seconds=chance.randint(0, 2000))
    node = chance.choice(nodes).id
    ends = begins + timedelta(seconds=chance.choice([300, 1500]))
    return Booking("b", "demo", chance.choice(["red", "green"]), frozenset({node}), begins, ends)


def any_policy(chance: Random, *, slices: bool = True) -> Policy:
    return Policy(
        keeps_for_gpus=False,  # has properties of its own
        order=chance.choice(list(QueueOrder)),
        is_fair=chance.random() < 0.7,
        usage_weight=chance.choice([0.0, 0.0, 0.5]),
        levels_gpu_s=(300.0, 2000.0),
        starvation_s=5000.0,
        preempts_priority=chance.random() < 0.8,
        reclaims=chance.random() < 0.8,
        preempts_shares=chance.random() < 0.5,
        time_slice_s=chance.choice([None, 120.0, 600.0]) if slices else None,
        min_run_time_s=chance.choice([0.0, 60.0, 300.0]),
        grace_s=chance.choice([0.0, 30.0]),
        shrinks=chance.random() < 0.7,
        restart_cost_s=chance.choice([0.0, 60.0]),
        defragment=chance.choice(list(Defragment)),
        rotation_s=chance.choice([None, None, 200.0, 900.0]) if slices else None,
    )
