"""Parts of GPUs, and parameter servers apart or spread: what no plan may do, held against a planner that tries
everything.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.domain.sharing.resources import Amounts
from scheduler.planning import Plan, Snapshot, WaitReasonCode, plan
from scheduler.planning.placement.backfill import give_back
from scheduler.simulator.cluster import SimulatedCluster
from tests.properties.parts_worlds import POLICY, assignment, snapshots

often = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def after(snapshot: Snapshot, made: Plan) -> tuple[SimulatedCluster, Snapshot]:
    world = SimulatedCluster(snapshot.nodes, policy=POLICY)
    for job in snapshot.queued:
        world.enqueue(job)
    world.apply(made, snapshot.now)
    new = world.snapshot(snapshot.now)
    return world, replace(new, running=snapshot.running + new.running)


@often
@given(snapshots())
def test_no_device_is_overcommitted_a_gang_is_all_or_none_and_servers_stand_where_they_may(snapshot: Snapshot) -> None:
    # The world deals out every part by itself, and refuses a plan that it cannot.
    world, _ = after(snapshot, plan(snapshot))
    for node in world.nodes.values():
        for model, whole in node.allocatable.gpus.items():
            shared = node.free.shares.get(model, ())
            assert all(0 <= left < 1000 for left in shared)
            assert 0 <= node.free.gpus.get(model, 0) + len(shared) <= whole


@often
@given(snapshots(plain=True))
def test_a_gang_of_one_kind_of_request_waits_only_if_no_assignment_exists(snapshot: Snapshot) -> None:
    made = plan(snapshot)
    _, left = after(snapshot, made)
    empty = tuple(replace(node, free=node.allocatable) for node in snapshot.nodes)
    for job in left.queued:
        fits_now = assignment(left.nodes, job.gang) is not None
        code = made.waits[job.job_id].code
        assert fits_now == (code is WaitReasonCode.RESERVED), (job.gang, made.waits[job.job_id])
        if code in {WaitReasonCode.NEVER_FITS, WaitReasonCode.NO_MATCHING_NODE, WaitReasonCode.TOO_LARGE}:
            assert assignment(empty, job.gang) is None


@often
@given(snapshots())
def test_small_gangs_of_unlike_members_find_their_place_too(snapshot: Snapshot) -> None:
    made = plan(snapshot)
    _, left = after(snapshot, made)
    for job in left.queued:
        if assignment(left.nodes, job.gang) is not None:
            assert made.waits[job.job_id].code is WaitReasonCode.RESERVED, (job.gang, made.waits[job.job_id])


@often
@given(snapshots())
def test_planning_again_after_applying_starts_nothing_new(snapshot: Snapshot) -> None:
    _, left = after(snapshot, plan(snapshot))
    assert plan(left).starts == ()


@often
@given(snapshots(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(snapshot: Snapshot, chance: Random) -> None:
    def shuffled(items):
        return tuple(chance.sample(items, len(items)))

    twin = replace(
        snapshot,
        nodes=shuffled(snapshot.nodes),
        queued=shuffled(snapshot.queued),
        running=shuffled(snapshot.running),
    )
    assert plan(twin) == plan(snapshot)


@given(st.lists(st.lists(st.integers(1, 400), min_size=1, max_size=3), max_size=3), st.randoms(use_true_random=False))
def test_parts_that_end_give_back_as_much_as_they_had_and_all_of_them_whole_devices(
    devices: list[list[int]], chance: Random
) -> None:
    devices = [device for device in devices if sum(device) <= 1000]
    shares = tuple(sorted(1000 - sum(device) for device in devices))
    parts = [part for device in devices for part in device]
    assert give_back(shares, [], parts) == ((), len(devices))
    ending = [part for part in parts if chance.random() < 0.5]
    staying = parts.copy()
    for part in ending:
        staying.remove(part)
    left, freed = give_back(shares, staying, ending)
    assert sum(left) + 1000 * freed == sum(shares) + sum(ending)


def test_a_part_shares_a_device_that_is_shared_already_before_it_opens_another() -> None:
    from core.domain.sharing.resources import Gang, GangRole, ResourceRequest
    from scheduler.planning import NodeSnapshot
    from tests.properties.parts_worlds import NOW, QueuedGang

    whole = Amounts(64_000, 64, {"t4": 2})
    shared = Amounts(64_000, 64, {"t4": 1}, {"t4": (600,)})
    gang = Gang((GangRole("worker", 1, ResourceRequest(1000, 1, 0, (), 500)),))
    job = QueuedGang("j", "j", "p", "u", 50, NOW, gang, gang.shape())
    nodes = (NodeSnapshot("n0", {}, whole, whole), NodeSnapshot("n1", {}, whole, shared))
    (start,) = plan(Snapshot(NOW, nodes, (job,))).starts
    assert start.placements[0].node == "n1"
