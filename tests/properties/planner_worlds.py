"""Strategies for small clusters and queues, and the slow planner that the real one is held against."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from random import Random

from hypothesis import strategies as st

from core.domain.ids import JobId, NodeId
from core.domain.sharing.policy import QueueOrder
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import NodeSnapshot, Policy, QueuedGang, Snapshot
from scheduler.simulator.cluster import SimulatedCluster

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
# Two of one family, so that one wish may mean two models.
MODELS = ("a100-sxm4-80gb", "h100-80gb-hbm3", "a100-pcie-40gb")
# Whoever runs stays, nothing is kept for GPUs, and reservations are not lent, as they are in orders by length: what
# preemption may do, what is kept, and what is lent have properties of their own.
NOBODY_GOES = Policy(
    order=QueueOrder.ATTAINED_SERVICE,
    time_slice_s=None,
    preempts_priority=False,
    reclaims=False,
    shrinks=False,
    keeps_for_gpus=False,
)
WISHES = ((), ("H100",), ("A100",), ("A100-80GB",), ("A100", "H100"), ("h100", "NVIDIA A100-PCIE-40GB"), ("A100-8",))


@st.composite
def nodes(draw: st.DrawFn, *, most: int = 6, mixed: bool = True) -> tuple[NodeSnapshot, ...]:
    made = []
    for number in range(draw(st.integers(1, most))):
        one = [(model,) for model in MODELS]
        models = draw(st.sampled_from([(), *one, *([MODELS[:2], MODELS[::2]] if mixed else [])]))
        whole = Amounts(
            draw(st.integers(1, 8)), draw(st.integers(1, 8)), {model: draw(st.integers(1, 4)) for model in models}
        )
        labels = {"pool": draw(st.sampled_from("ab"))}
        if draw(st.booleans()):
            labels["topology/rack"] = draw(st.sampled_from("xy"))
        if draw(st.booleans()):
            labels["topology/zone"] = draw(st.sampled_from("vw"))
        works = draw(st.sampled_from([True, True, True, False]))
        made.append(NodeSnapshot(NodeId(f"n{number}"), labels, whole, whole, works, "" if works else "is cordoned"))
    return tuple(made)


@st.composite
def requests(draw: st.DrawFn) -> ResourceRequest:
    gpus = draw(st.sampled_from([0, 0, 1, 1, 2, 3, 4]))
    models = draw(st.sampled_from(WISHES)) if gpus else ()
    return ResourceRequest(draw(st.integers(0, 4)), draw(st.integers(0, 4)), gpus, models)


@st.composite
def gangs(draw: st.DrawFn, *, most: int = 4, plain: bool = False) -> Gang:
    names = draw(st.lists(st.sampled_from(["chief", "worker", "ps", "evaluator"]), min_size=1, max_size=3, unique=True))
    names.sort(key=["chief", "worker", "ps", "evaluator"].index)
    roles = [GangRole(name, draw(st.integers(1, most)), draw(requests())) for name in names[: 1 if plain else None]]
    selector = draw(st.sampled_from([(), (), (("pool", "a"),)]))
    topology = None if plain else draw(st.sampled_from([None, None, "node", "rack", "zone"]))
    return Gang(tuple(roles), selector, topology, bool(topology) and draw(st.booleans()))


@st.composite
def queues(draw: st.DrawFn, *, most: int = 8, prefix: str = "q") -> tuple[QueuedGang, ...]:
    pool = draw(st.lists(gangs(), min_size=1, max_size=4))
    made = []
    for number in range(draw(st.integers(0, most))):
        gang = draw(st.sampled_from(pool))
        made.append(
            QueuedGang(
                job_id=JobId(f"{prefix}{number}"),
                name=f"job-{prefix}{number}",
                project="p",
                user="u",
                priority=draw(st.sampled_from([10, 50, 50, 90])),
                queued_at=NOW - timedelta(seconds=draw(st.integers(0, 5))),
                gang=gang,
                shape=gang.shape(),
                max_run_time_s=draw(st.sampled_from([None, 10.0, 60.0, 600.0])),
            )
        )
    return tuple(made)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """A cluster on which some jobs run (placed by the slow planner) and some wait."""
    world = SimulatedCluster(draw(nodes()), policy=NOBODY_GOES)
    for job in draw(queues(prefix="r", most=5)):
        first_fit(world, job, NOW - timedelta(seconds=draw(st.integers(0, 700))))
    for job in draw(queues()):
        world.enqueue(job)
    return world.snapshot(NOW)


def busy_snapshot(chance: Random) -> Snapshot:
    """Nodes full of small jobs, large gangs before all others in the queue, and small jobs behind them."""
    sizes = [chance.randint(2, 6) for _ in range(chance.randint(1, 5))]
    wholes = [Amounts(8, 8, {"H100": size}) for size in sizes]
    nodes = [NodeSnapshot(NodeId(f"n{number}"), {}, whole, whole) for number, whole in enumerate(wholes)]
    world = SimulatedCluster(nodes, policy=NOBODY_GOES)

    def job(name: str, members: int, gpus: int, priority: int) -> QueuedGang:
        gang = Gang((GangRole("worker", members, ResourceRequest(1, 1, gpus)),))
        limit = chance.choice([None, 10.0, 60.0, 600.0])
        return QueuedGang(JobId(name), name, "p", "u", priority, NOW, gang, gang.shape(), limit)

    for number in range(chance.randint(1, 12)):
        at = NOW - timedelta(seconds=chance.randint(0, 50))
        first_fit(world, job(f"r{number}", 1, chance.randint(1, 2), 50), at)
    for number in range(chance.randint(1, 3)):
        world.enqueue(job(f"big{number}", chance.randint(1, len(sizes)), chance.randint(1, 4), 90))
    for number in range(chance.randint(1, 8)):
        world.enqueue(job(f"q{number}", chance.randint(1, 2), chance.randint(1, 2), 50))
    return world.snapshot(NOW)


def any_snapshots() -> st.SearchStrategy[Snapshot]:
    return st.one_of(snapshots(), st.integers(0, 1 << 30).map(lambda seed: busy_snapshot(Random(seed))))


def first_fit(world: SimulatedCluster, job: QueuedGang, at: datetime) -> None:
    """Start ``job`` if some assignment exists, by trying them all."""
    from scheduler.planning import Placement, Start

    seats = assignment(world.snapshot(at).nodes, job.gang)
    if seats is None:
        return
    world.enqueue(job)
    members = [(role.role, index) for role in job.gang.roles for index in range(role.replicas)]
    placements = tuple(
        Placement(role, index, NodeId(node), model) for (role, index), (node, model) in zip(members, seats, strict=True)
    )
    world.start(Start(job.job_id, placements), at)


def assignment(nodes: Sequence[NodeSnapshot], gang: Gang) -> list[tuple[str, str | None]] | None:
    """The reference: a seat for every replica of ``gang`` in what is free, by backtracking over replicas and nodes."""
    for domain in _domains(nodes, gang):
        free = {n.id: [n.free.cpu_milli, n.free.memory_bytes, dict(n.free.gpus)] for n in domain}
        seats: list[tuple[str, str | None]] = []
        members = [role.request for role in gang.roles for _ in range(role.replicas)]
        if _seat(members, free, seats):
            return seats
    return None


def _seat(members: list[ResourceRequest], free: dict, seats: list[tuple[str, str | None]]) -> bool:
    if len(seats) == len(members):
        return True
    request = members[len(seats)]
    tried = set()
    # Equal members need not be tried in every order: a member stands no further left than its equal before it.
    earliest = seats[-1] if seats and members[len(seats) - 1] == request else None
    for seat in _seats(request, free):
        if earliest is not None and (seat[0], seat[1] or "") < (earliest[0], earliest[1] or ""):
            continue
        node, model = seat
        amounts = free[node]
        state = (amounts[0], amounts[1], tuple(sorted(amounts[2].items())), model)
        if state in tried and earliest is None and len(seats) == len(members) - 1:
            continue
        tried.add(state)
        amounts[0] -= request.cpu_milli
        amounts[1] -= request.memory_bytes
        if model:
            amounts[2][model] -= request.gpu_count
        seats.append(seat)
        if _seat(members, free, seats):
            return True
        seats.pop()
        amounts[0] += request.cpu_milli
        amounts[1] += request.memory_bytes
        if model:
            amounts[2][model] += request.gpu_count
    return False


def _seats(request: ResourceRequest, free: dict) -> Iterator[tuple[str, str | None]]:
    for node in sorted(free):
        cpu, memory, gpus = free[node]
        if request.cpu_milli > cpu or request.memory_bytes > memory:
            continue
        if not request.gpu_count:
            yield node, None
        for model in sorted(gpus) if request.gpu_count else ():
            if gpus[model] >= request.gpu_count and _may_be(model, request.gpu_models):
                yield node, model


def _may_be(model: str, wishes: Sequence[str]) -> bool:
    """The headroom for models, written another way: a wish's parts are among the model's, in their order."""
    patterns = (wish.lower().removeprefix("nvidia ").replace("-", "-(.*-)?") for wish in wishes)
    return not wishes or any(re.search(f"-{pattern}-", f"-{model}-") for pattern in patterns)


def _domains(nodes: Sequence[NodeSnapshot], gang: Gang) -> list[list[NodeSnapshot]]:
    matching = [n for n in nodes if n.is_schedulable and all(n.labels.get(k) == v for k, v in gang.node_selector)]
    if not gang.topology_required or gang.topology is None:
        return [matching]
    groups: dict[str, list[NodeSnapshot]] = {}
    for node in matching:
        name = node.labels.get(f"topology/{gang.topology}")
        groups.setdefault(name if name and gang.topology != "node" else f"node {node.id}", []).append(node)
    return list(groups.values())


def in_order(snapshot: Snapshot) -> list[QueuedGang]:
    """One project, one user, nobody had anything yet: by priority, then by age."""
    return sorted(snapshot.queued, key=lambda job: (-job.priority, job.queued_at, job.job_id))
