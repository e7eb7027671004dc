"""What growing may never do, on small random clusters with elastic gangs that lose and lack replicas."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import NodeSnapshot, QueuedGang, plan
from scheduler.simulator.cluster import SimulatedCluster
from tests.properties.planner_worlds import NOBODY_GOES, NOW, assignment, first_fit, nodes, queues

often = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def elastic_jobs(draw: st.DrawFn, prefix: str) -> tuple[QueuedGang, ...]:
    made = []
    for number in range(draw(st.integers(0, 3))):
        least = draw(st.integers(1, 2))
        role = GangRole(
            "worker",
            least,
            ResourceRequest(draw(st.integers(1, 2)), draw(st.integers(0, 2)), draw(st.integers(0, 1))),
            least + draw(st.integers(1, 3)),
        )
        chief = (GangRole("chief", 1, ResourceRequest(1, 0)),) if draw(st.booleans()) else ()
        selector = draw(st.sampled_from([(), (("pool", "a"),)]))
        gang = Gang((*chief, role), selector)
        queued_at = NOW - timedelta(seconds=draw(st.integers(0, 5)))
        priority = draw(st.sampled_from([10, 50, 90]))
        made.append(
            QueuedGang(
                JobId(f"{prefix}{number}"), f"{prefix}{number}", "p", "u", priority, queued_at, gang, gang.shape()
            )
        )
    return tuple(made)


@st.composite
def worlds(draw: st.DrawFn, *, with_queue: bool = True) -> SimulatedCluster:
    """Elastic gangs that run with as few as they must, or fewer than they had, beside others; and some that wait."""
    world = SimulatedCluster(draw(nodes(most=4)), policy=NOBODY_GOES)
    for job in (*draw(elastic_jobs("e")), *draw(queues(prefix="r", most=2))):
        first_fit(world, job, NOW)
    if draw(st.booleans()):
        world.apply(plan(replace(world.snapshot(NOW), queued=())), NOW)
        for job_id, running in list(world.running.items()):
            role = running.job.gang.elastic
            if role is not None:
                has = sum(placement.role == role.role for placement in running.placements)
                world.lose(job_id, draw(st.integers(0, has - role.replicas)))
    if with_queue:
        for job in (*draw(elastic_jobs("q")), *draw(queues(most=3))):
            world.enqueue(job)
    return world


@often
@given(worlds())
def test_no_growth_breaks_a_promise_and_planning_again_grows_nothing_more(world: SimulatedCluster) -> None:
    # SimulatedCluster.apply checks each line: no node over-committed, no replica twice, at most as many as the gang
    # may have,
    # only its elastic role, selectors and models respected.
    world.policy = replace(world.policy, keeps_for_gpus=True)
    world.apply(plan(world.snapshot(NOW)), NOW)
    for node in world.nodes.values():
        assert min(node.free.cpu_milli, node.free.memory_bytes, *node.free.gpus.values(), 0) >= 0
    again = plan(world.snapshot(NOW))
    assert again.starts == ()
    assert again.grows == ()


@often
@given(worlds())
def test_growth_uses_no_node_that_a_waiting_job_could_ever_use(world: SimulatedCluster) -> None:
    snapshot = world.snapshot(NOW)
    made = plan(snapshot)
    least = {job.job_id: {role.role: role.replicas for role in job.gang.roles} for job in snapshot.queued}
    taken = {p.node for grow in made.grows for p in grow.placements}
    taken |= {p.node for start in made.starts for p in start.placements if p.index >= least[start.job_id][p.role]}
    nodes_ = {node.id: node for node in snapshot.nodes}
    for job in snapshot.queued:
        if job.job_id not in made.waits:
            continue
        empty = [replace(node, free=node.allocatable) for node in snapshot.nodes]
        if assignment(empty, job.gang) is None:
            continue  # it never starts here: nobody need wait for it
        for name in taken:
            # Even alone on that node no member of the gang would stand there.
            alone = replace(nodes_[name], free=nodes_[name].allocatable)
            for role in job.gang.roles:
                one = Gang((replace(role, replicas=1, most=None),), job.gang.node_selector)
                assert assignment([alone], one) is None


@often
@given(worlds(with_queue=False))
def test_with_an_empty_queue_every_gang_grows_as_far_as_room_allows(world: SimulatedCluster) -> None:
    world.apply(plan(world.snapshot(NOW)), NOW)
    for growing in world.snapshot(NOW).growing:
        role = growing.gang.elastic
        assert role is not None
        models = {model for _, model in growing.placed if model}
        request = replace(role.request, gpu_models=tuple(models)) if len(models) == 1 else role.request
        one = Gang((GangRole(role.role, 1, request),), growing.gang.node_selector)
        assert assignment(list(world.nodes.values()), one) is None


def test_one_that_waits_for_the_whole_node_keeps_a_gang_on_it_from_growing() -> None:
    whole = Amounts(4, 4)
    small = Gang((GangRole("worker", 1, ResourceRequest(1, 1), 3),))
    large = Gang((GangRole("worker", 1, ResourceRequest(4, 4)),))

    def world_with(*waiting: QueuedGang) -> SimulatedCluster:
        world = SimulatedCluster([NodeSnapshot(NodeId("n0"), {}, whole, whole)])
        first_fit(world, QueuedGang(JobId("e"), "e", "p", "u", 90, NOW, small, small.shape()), NOW)
        for job in waiting:
            world.enqueue(job)
        return world

    waits = QueuedGang(JobId("w"), "w", "p", "u", 10, NOW, large, large.shape())
    assert plan(world_with(waits).snapshot(NOW)).grows == ()
    (grow,) = plan(world_with().snapshot(NOW)).grows
    assert [placement.index for placement in grow.placements] == [1, 2]


def test_an_elastic_gang_starts_with_as_many_as_there_is_place_for() -> None:
    whole = Amounts(3, 3)
    gang = Gang((GangRole("chief", 1, ResourceRequest(1, 1)), GangRole("worker", 1, ResourceRequest(1, 1), 8)))
    world = SimulatedCluster([NodeSnapshot(NodeId("n0"), {}, whole, whole)])
    world.enqueue(QueuedGang(JobId("e"), "e", "p", "u", 50, NOW, gang, gang.shape()))
    (start,) = plan(world.snapshot(NOW)).starts
    assert [(p.role, p.index) for p in start.placements] == [("chief", 0), ("worker", 0), ("worker", 1)]
