"""Jobs without GPUs keep off what the free GPUs of a node will need: held against the headroom, written down another
way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import NodeSnapshot, Plan, Policy, QueuedGang, Snapshot, WaitReasonCode, plan
from scheduler.simulator.cluster import SimulatedCluster
from scheduler.simulator.engine import Simulation
from scheduler.simulator.reading.arrival import Arrival
from scheduler.simulator.reading.scenario import Scenario
from tests.properties.planner_worlds import NOBODY_GOES, NOW, assignment

MODELS = ("A100", "H100")
NEVER = {WaitReasonCode.NEVER_FITS, WaitReasonCode.TOO_LARGE, WaitReasonCode.NO_MATCHING_NODE, WaitReasonCode.NO_NODES}
KEEPS = replace(NOBODY_GOES, keeps_for_gpus=True)
often = settings(max_examples=40, deadline=None)


def cluster(chance: Random) -> list[NodeSnapshot]:
    made = []
    for number in range(chance.randint(1, 4)):
        gpus = chance.choice([0, 1, 2, 4])
        models = {chance.choice(MODELS): gpus} if gpus else {}
        whole = Amounts(chance.randint(2, 12), chance.randint(8, 24), models)
        made.append(NodeSnapshot(NodeId(f"n{number}"), {}, whole, whole))
    return made


def gang(chance: Random) -> Gang:
    kind = chance.random()
    cpu, memory = chance.randint(1, 4), chance.randint(0, 6)
    if kind < 0.5:
        return Gang((GangRole("worker", chance.choice([1, 1, 1, 2, 3]), ResourceRequest(cpu, memory)),))
    if kind < 0.6:
        return Gang((GangRole("chief", 1, ResourceRequest(cpu, memory)), GangRole("worker", 2, ResourceRequest(2, 2))))
    if kind < 0.7:
        return Gang(
            (GangRole("worker", 1, ResourceRequest(cpu, memory, 1)), GangRole("ps", 1, ResourceRequest(cpu, memory)))
        )
    wish = chance.choice([(), (), ("H100",)])
    part = chance.choice([0, 0, 300, 500])
    request = ResourceRequest(cpu, memory, 0 if part else chance.randint(1, 2), wish, part)
    return Gang((GangRole("worker", chance.choice([1, 1, 2]), request),))


def job(name: str, wanted: Gang, chance: Random) -> QueuedGang:
    limit = chance.choice([None, 10.0, 60.0, 600.0])
    at = NOW - timedelta(seconds=chance.randint(0, 5))
    return QueuedGang(JobId(name), name, "p", "u", 50, at, wanted, wanted.shape(), limit)


def busy(seed: int, policy: Policy = KEEPS) -> Snapshot:
    """Some jobs run, and some more wait, about half of them without GPUs."""
    chance = Random(seed)
    world = SimulatedCluster(cluster(chance), policy=replace(policy, keeps_for_gpus=False))
    for number in range(chance.randint(0, 6)):
        world.enqueue(job(f"r{number}", gang(chance), chance))
    at = NOW - timedelta(seconds=chance.randint(0, 50))
    world.apply(plan(world.snapshot(at)), at)
    world.queued.clear()
    for number in range(chance.randint(1, 8)):
        world.enqueue(job(f"q{number}", gang(chance), chance))
    return replace(world.snapshot(NOW), policy=policy)


worlds = st.integers(0, 1 << 40).map(busy)


def requested(snapshot: Snapshot) -> list[ResourceRequest]:
    """What is asked for with GPUs, once for each member that asks."""
    empty = [replace(node, free=node.allocatable) for node in snapshot.nodes]
    gangs = [running.gang for running in snapshot.running]
    gangs += [waiting.gang for waiting in snapshot.queued if fits(empty, waiting.gang)]
    return [role.request for one in gangs for role in one.roles for _ in range(role.replicas) if role.request.uses_gpu]


def fits(nodes: Sequence[NodeSnapshot], wanted: Gang) -> bool:
    """By the planner itself, alone and without the headroom."""
    one = QueuedGang(JobId("x"), "x", "p", "u", 50, NOW, wanted, wanted.shape())
    return bool(plan(Snapshot(NOW, tuple(nodes), (one,), policy=Policy(keeps_for_gpus=False))).starts)


def milli_of(request: ResourceRequest) -> int:
    return 1000 * request.gpu_count + request.gpu_milli


def enough(requests: Iterable[ResourceRequest], model: str, field: str) -> int:
    """For three in four of the GPUs, what each needs of ``field``."""
    each = []
    for request in requests:
        if not request.gpu_models or model in request.gpu_models:
            amount = Fraction(1000 * getattr(request, field), milli_of(request))
            each += [-(-amount.numerator // amount.denominator)] * (milli_of(request) // 100)
    each.sort()
    return each[-(-3 * len(each) // 4) - 1] if each else 0


def retained(node: NodeSnapshot, free: Amounts, requests: list[ResourceRequest], field: str) -> int:
    total = 0
    for model, gpus in node.allocatable.gpus.items():
        milli = 1000 * free.gpus.get(model, 0) + sum(free.shares.get(model, ()))
        share = getattr(node.allocatable, field) // node.allocatable.gpu_count
        total += milli * min(share, enough(requests, model, field)) // 1000
        assert gpus
    return total


def spare(nodes: Iterable[NodeSnapshot], requests: list[ResourceRequest]) -> list[NodeSnapshot]:
    """The nodes with what jobs without GPUs may use of them."""
    return [
        replace(
            node,
            free=replace(
                node.free,
                cpu_milli=max(0, node.free.cpu_milli - retained(node, node.free, requests, "cpu_milli")),
                memory_bytes=max(0, node.free.memory_bytes - retained(node, node.free, requests, "memory_bytes")),
            ),
        )
        for node in nodes
    ]


def is_bound(wanted: Gang, nodes: Iterable[NodeSnapshot], requests: list[ResourceRequest]) -> bool:
    empty = [replace(node, free=node.allocatable) for node in nodes]
    return not wanted.gpu_milli and assignment(spare(empty, requests), wanted) is not None


def applied(snapshot: Snapshot, made: Plan) -> SimulatedCluster:
    world = SimulatedCluster(snapshot.nodes, policy=snapshot.policy)
    for waiting in snapshot.queued:
        world.enqueue(waiting)
    world.apply(made, snapshot.now)
    return world


@often
@given(worlds)
def test_a_gang_without_gpus_leaves_the_headroom_unless_it_could_never_run_otherwise(
    snapshot: Snapshot,
) -> None:
    requests = requested(snapshot)
    gangs = {waiting.job_id: waiting.gang for waiting in snapshot.queued}
    world = SimulatedCluster(snapshot.nodes)
    for start in plan(snapshot).starts:
        world.enqueue(next(waiting for waiting in snapshot.queued if waiting.job_id == start.job_id))
        world.start(start, NOW)
        if not is_bound(gangs[start.job_id], snapshot.nodes, requests):
            continue
        for node in {placement.node for placement in start.placements}:
            view = world.nodes[node]
            needs = {placement.role for placement in start.placements if placement.node == node}
            amounts = [role.request for role in gangs[start.job_id].roles if role.role in needs]
            for field in ("cpu_milli", "memory_bytes"):
                if any(getattr(request, field) for request in amounts):
                    assert getattr(view.free, field) >= retained(view, view.free, requests, field)


@often
@given(worlds)
def test_exactly_the_jobs_blocked_by_headroom_would_fit_without_it(snapshot: Snapshot) -> None:
    made = plan(snapshot)
    nodes = tuple(applied(snapshot, made).nodes.values())
    requests = requested(snapshot)
    gangs = {waiting.job_id: waiting.gang for waiting in snapshot.queued}
    for job_id, reason in made.waits.items():
        wanted = gangs[job_id]
        is_free = fits(nodes, wanted)
        if reason.code is WaitReasonCode.GPU_HEADROOM:
            assert is_free
            assert is_bound(wanted, snapshot.nodes, requests)
            assert assignment(spare(nodes, requests), wanted) is None
        elif is_bound(wanted, snapshot.nodes, requests):
            is_spare = assignment(spare(nodes, requests), wanted) is not None
            assert is_spare == (reason.code is WaitReasonCode.RESERVED)
        else:
            assert is_free == (reason.code is WaitReasonCode.RESERVED)


@often
@given(worlds)
def test_planning_again_starts_nothing_new(snapshot: Snapshot) -> None:
    made = plan(snapshot)
    new = applied(snapshot, made).snapshot(NOW)
    assert plan(replace(new, running=snapshot.running + new.running)).starts == ()


@often
@given(worlds, st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(snapshot: Snapshot, chance: Random) -> None:
    def shuffled(items: tuple) -> tuple:
        return tuple(chance.sample(items, len(items)))

    twin = replace(
        snapshot, nodes=shuffled(snapshot.nodes), queued=shuffled(snapshot.queued), running=shuffled(snapshot.running)
    )
    assert plan(twin) == plan(snapshot)


@often
@given(worlds)
def test_without_headroom_the_plan_is_as_without_the_rule(snapshot: Snapshot) -> None:
    # Nobody asks for GPUs: all CPUs are for all.
    bare = replace(
        snapshot,
        queued=tuple(waiting for waiting in snapshot.queued if not waiting.gang.gpu_milli),
        running=tuple(running for running in snapshot.running if not running.gang.gpu_milli),
    )
    off = replace(bare, policy=replace(bare.policy, keeps_for_gpus=False))
    assert plan(bare) == plan(off)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 40))
def test_every_feasible_job_starts_and_ends(seed: int) -> None:
    chance = Random(seed)
    nodes = tuple(cluster(chance))
    arrivals = []
    for number in range(chance.randint(3, 18)):
        wanted, duration = gang(chance), float(chance.randint(1, 30))
        limit = chance.choice([None, duration, 60.0])
        at = float(chance.randint(0, 30))
        arrivals.append(Arrival(f"j{number}", at, duration, wanted, wanted.shape(), max_run_time_s=limit))
    outcome = Simulation(Scenario("random", nodes, tuple(arrivals))).run()
    for one in outcome.jobs.values():
        assert (one.ended_s is not None) == fits(nodes, one.arrival.gang), one.reasons
