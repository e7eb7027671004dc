"""Small clusters and queues with parts of GPUs and parameter servers apart or spread, and the slow exact planner for
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from core.domain.ids import JobId, NodeId
from core.domain.sharing.policy import Policy, QueueOrder
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import NodeSnapshot, Placement, QueuedGang, Snapshot, Start
from scheduler.simulator.cluster import SimulatedCluster

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
POLICY = Policy(
    order=QueueOrder.FIFO, is_fair=False, preempts_priority=False, reclaims=False, shrinks=False, keeps_for_gpus=False
)
PARTS = (100, 250, 300, 400, 500, 650, 999)


@st.composite
def nodes(draw: st.DrawFn, *, most: int = 4) -> tuple[NodeSnapshot, ...]:
    made = []
    for number in range(draw(st.integers(1, most))):
        models = draw(st.sampled_from([(), ("t4",), ("t4",), ("l4",), ("t4", "l4")]))
        gpus = {model: draw(st.integers(1, 3)) for model in models}
        whole = Amounts(draw(st.integers(2, 8)), draw(st.integers(2, 8)), gpus)
        labels = {"topology/rack": draw(st.sampled_from("xy"))}
        made.append(NodeSnapshot(NodeId(f"n{number}"), labels, whole, whole))
    return tuple(made)


@st.composite
def requests(draw: st.DrawFn) -> ResourceRequest:
    part = draw(st.sampled_from([0, *PARTS]))
    gpus = 0 if part else draw(st.sampled_from([0, 0, 1, 2]))
    models = draw(st.sampled_from([(), (), ("T4",), ("L4", "T4")])) if part or gpus else ()
    return ResourceRequest(draw(st.integers(0, 3)), draw(st.integers(0, 3)), gpus, models, part)


@st.composite
def gangs(draw: st.DrawFn, *, most: int = 3, plain: bool = False) -> Gang:
    names = ["worker"] if plain else draw(st.sampled_from([["worker"], ["ps", "worker"], ["chief", "ps", "worker"]]))
    roles = tuple(GangRole(name, draw(st.integers(1, most)), draw(requests())) for name in names)
    topology = None if plain else draw(st.sampled_from([None, None, "node", "rack"]))
    return Gang(
        roles,
        topology=topology,
        topology_required=bool(topology) and draw(st.booleans()),
        servers=None if plain else draw(st.sampled_from([None, None, "apart"])),
        spread_servers=not plain and draw(st.sampled_from([False, False, True])),
    )


@st.composite
def queues(draw: st.DrawFn, *, most: int, prefix: str, plain: bool = False) -> tuple[QueuedGang, ...]:
    made = []
    for number in range(draw(st.integers(0, most))):
        gang = draw(gangs(plain=plain))
        name, age = f"{prefix}{number}", timedelta(seconds=draw(st.integers(0, 5)))
        limit = draw(st.sampled_from([None, 10.0, 60.0]))
        made.append(QueuedGang(JobId(name), name, "p", "u", 50, NOW - age, gang, gang.shape(), limit))
    return tuple(made)


@st.composite
def snapshots(draw: st.DrawFn, *, plain: bool = False) -> Snapshot:
    """A cluster on which some jobs run, placed by the slow planner, and some wait."""
    world = SimulatedCluster(draw(nodes()), policy=POLICY)
    for job in draw(queues(most=4, prefix="r", plain=True)):
        seats = assignment(world.snapshot(NOW).nodes, job.gang)
        if seats is not None:
            world.enqueue(job)
            world.start(Start(job.job_id, seats), NOW - timedelta(seconds=draw(st.integers(0, 50))))
    ended = draw(st.lists(st.sampled_from(sorted(world.running)), unique=True)) if world.running else []
    for job_id in ended:
        world.finish(job_id)
    for job in draw(queues(most=5, prefix="q", plain=plain)):
        world.enqueue(job)
    return world.snapshot(NOW)


class _Node:
    """What is free on one node, each shared device by itself."""

    def __init__(self, free: Amounts) -> None:
        self.cpu, self.memory, self.whole = free.cpu_milli, free.memory_bytes, dict(free.gpus)
        self.devices = {model: list(left) for model, left in free.shares.items()}
        self.roles: list[str] = []

    def copy(self) -> _Node:
        twin = _Node(Amounts(self.cpu, self.memory, self.whole, {m: tuple(d) for m, d in self.devices.items()}))
        twin.roles = [*self.roles]
        return twin

    def with_one(self, role: str, request: ResourceRequest, model: str | None, gang: Gang) -> _Node | None:
        after = self.copy()
        after.cpu -= request.cpu_milli
        after.memory -= request.memory_bytes
        after.roles.append(role)
        if model is not None and request.gpu_milli:
            devices = after.devices.setdefault(model, [])
            fitting = sorted((left, at) for at, left in enumerate(devices) if left >= request.gpu_milli)
            if fitting:
                devices[fitting[0][1]] -= request.gpu_milli
            else:
                after.whole[model] = after.whole.get(model, 0) - 1
                devices.append(1000 - request.gpu_milli)
        elif model is not None:
            after.whole[model] = after.whole.get(model, 0) - request.gpu_count
        servers = after.roles.count("ps")
        if gang.servers == "apart" and 0 < servers < len(after.roles):
            return None
        if gang.spread_servers and servers > 1:
            return None
        return None if min(after.cpu, after.memory, *after.whole.values(), 0) < 0 else after


def assignment(nodes: Sequence[NodeSnapshot], gang: Gang) -> tuple[Placement, ...] | None:
    """A seat for every replica, by trying every node and model for each; larger parts are dealt out first."""
    members = [(role.role, index, role.request) for role in gang.roles for index in range(role.replicas)]
    members.sort(key=lambda member: -member[2].gpu_milli)
    for domain in _domains(nodes, gang):
        seats: dict[tuple[str, int], Placement] = {}
        if _seat(members, {node.id: _Node(node.free) for node in domain}, seats, gang):
            return tuple(seats[role.role, index] for role in gang.roles for index in range(role.replicas))
    return None


def _seat(
    members: list[tuple[str, int, ResourceRequest]],
    free: dict[NodeId, _Node],
    seats: dict[tuple[str, int], Placement],
    gang: Gang,
) -> bool:
    if not members:
        return True
    (role, index, request), *others = members
    # Equal members of a role need not be tried in every order.
    before = seats.get((role, index - 1))
    for node, model in _places(request, free):
        if before is not None and (node, model or "") < (before.node, before.gpu_model or ""):
            continue
        after = free[node].with_one(role, request, model, gang)
        if after is None:
            continue
        seats[role, index] = Placement(role, index, node, model)
        if _seat(others, {**free, node: after}, seats, gang):
            return True
        del seats[role, index]
    return False


def _places(request: ResourceRequest, free: dict[NodeId, _Node]) -> Iterator[tuple[NodeId, str | None]]:
    for node in sorted(free):
        if not request.uses_gpu:
            yield node, None
            continue
        for model in sorted({*free[node].whole, *free[node].devices}):
            if not request.gpu_models or model.upper() in request.gpu_models:
                yield node, model


def _domains(nodes: Sequence[NodeSnapshot], gang: Gang) -> list[list[NodeSnapshot]]:
    if not gang.topology_required:
        return [list(nodes)]
    groups: dict[str, list[NodeSnapshot]] = {}
    for node in nodes:
        groups.setdefault(node.id if gang.topology == "node" else node.labels["topology/rack"], []).append(node)
    return list(groups.values())
