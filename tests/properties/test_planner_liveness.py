"""Nobody waits for ever: simulated to the end, every job that can run starts, whatever comes behind it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import NodeSnapshot, Plan, Policy, QueueOrder, Snapshot, plan
from scheduler.planning.queue.overtaking import OVERTAKEN_AFTER_S
from scheduler.simulator.engine import Simulation
from scheduler.simulator.reading.arrival import Arrival
from scheduler.simulator.reading.scenario import Scenario
from tests.properties.planner_worlds import assignment, gangs, nodes


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    cluster = draw(nodes(most=4))
    arrivals = []
    for number in range(draw(st.integers(1, 15))):
        gang = draw(gangs(most=3))
        duration = float(draw(st.integers(1, 30)))
        limit = draw(st.sampled_from([None, duration, 60.0]))
        priority = draw(st.sampled_from([10, 50, 90]))
        at = float(draw(st.integers(0, 20)))
        arrivals.append(
            Arrival(f"j{number}", at, duration, gang, gang.shape(), priority=priority, max_run_time_s=limit)
        )
    return Scenario("random", cluster, tuple(arrivals))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios())
def test_every_feasible_job_starts_and_ends_and_no_other_does(scenario: Scenario) -> None:
    outcome = Simulation(scenario).run()
    for job in outcome.jobs.values():
        feasible = assignment(scenario.nodes, job.arrival.gang) is not None
        assert (job.ended_s is not None) == feasible, job.reasons


LONGEST_S = 1000.0
# In orders by length gangs reserve room against equals only once they are overtaken; in these orders at once.
BY_SERVICE = Policy(order=QueueOrder.ATTAINED_SERVICE, time_slice_s=None)
BY_LENGTH = Policy(order=QueueOrder.SHORTEST_FIRST, time_slice_s=600.0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("stated", "rounds"), [("always", 1), ("sometimes", 3), ("never", 3)])
def test_a_large_gang_starts_under_an_adversarial_stream_of_small_jobs(stated: str, rounds: int, seed: int) -> None:
    # More small jobs come than the cluster can run, of any length, so that every gap has a taker. Once everybody before
    # the gang has started, all ends are stated: it starts when the last of these ends, one longest run time later at
    # most. Where ends are unknown, nodes are held one by one as they clear, and it may change its mind about which:
    # three are allowed.
    chance = Random(seed)
    size, count = chance.randint(2, 8), chance.randint(2, 6)
    whole = Amounts(64, 64, {"H100": size})
    cluster = tuple(NodeSnapshot(f"n{number}", {}, whole, whole) for number in range(count))

    def arrival(name: str, at: float, members: int, gpus: int) -> Arrival:
        gang = Gang((GangRole("worker", members, ResourceRequest(1, 1, gpus)),))
        duration = chance.uniform(1, LONGEST_S)
        limit = chance.choice([duration, LONGEST_S])
        if stated == "never" or (stated == "sometimes" and chance.random() < 0.5):
            limit = None
        return Arrival(name, at, duration, gang, gang.shape(), max_run_time_s=limit)

    gap_s = 500.0 / (2 * count)
    small = [arrival(f"s{number:04}", number * gap_s, 1, chance.randint(1, size - 1)) for number in range(300)]
    big = arrival("big", 100.0, chance.randint(1, count), size)
    outcome = Simulation(Scenario("adversary", cluster, (*small, big), policy=BY_SERVICE)).run()
    before = [job.started_s for job in outcome.jobs.values() if job.arrival.at_s < 100.0]
    started = outcome.jobs["big"].started_s
    assert started is not None
    assert started <= max(100.0, *(at for at in before if at is not None)) + rounds * LONGEST_S


def test_the_gang_starves_without_its_reservation_so_the_stream_is_adversarial() -> None:
    # The same kind of stream against a planner that starts whatever fits: the gang waits until the stream ends.
    whole = Amounts(64, 64, {"H100": 4})
    cluster = tuple(NodeSnapshot(f"n{number}", {}, whole, whole) for number in range(2))

    def gang(gpus: int) -> Gang:
        return Gang((GangRole("worker", 1, ResourceRequest(1, 1, gpus)),))

    one, four = gang(1), gang(4)
    small = [Arrival(f"s{n:04}", n * 5.0, 60.0, one, one.shape()) for n in range(1000)]
    big = Arrival("big", 100.0, 60.0, four, four.shape())

    def greedy(snapshot: Snapshot) -> Plan:
        made = plan(snapshot)
        blocked = {job_id for job_id in made.waits if job_id == "big"}
        if not blocked:
            return made
        without = Snapshot(
            snapshot.now,
            snapshot.nodes,
            tuple(j for j in snapshot.queued if j.job_id != "big"),
            snapshot.running,
            policy=snapshot.policy,
        )
        other = plan(without)
        return Plan(other.starts, {**other.waits, "big": made.waits["big"]})  # type: ignore[dict-item]

    scenario = Scenario("adversary", cluster, (*small, big), policy=BY_SERVICE)
    starved = Simulation(scenario, greedy).run().jobs["big"].started_s
    served = Simulation(scenario).run().jobs["big"].started_s
    assert starved is not None
    assert served is not None
    assert starved > 4000
    assert served < 300


def _stream(name: str, pool: int, lasts_s: float) -> list[Arrival]:
    """A job of one GPU twice as often as one ends, so that every gap has a taker."""
    gang = Gang((GangRole("worker", 1, ResourceRequest(1, 1, 1)),), node_selector=(("pool", str(pool)),))
    return [Arrival(f"{name}-{n:04}", n * lasts_s / 2, lasts_s, gang, gang.shape()) for n in range(80)]


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("blocked", [0, 7, 8, 30])
def test_a_gang_is_never_starved_however_many_other_sets_of_nodes_have_a_blocked_gang(
    blocked: int, members: int
) -> None:
    # Only a few blocked gangs get a reservation that looks at ends; those behind them claim their nodes.
    whole = Amounts(64, 64, {"H100": 2})
    cluster = tuple(
        NodeSnapshot(f"p{n}-{m}", {"pool": str(n)}, whole, whole) for n in range(blocked + 1) for m in range(2)
    )
    arrivals = _stream("small", blocked, 900.0)
    for number in range(blocked + 1):
        pool = (("pool", str(number)),)
        one = Gang((GangRole("worker", 2, ResourceRequest(1, 1, 1)),), node_selector=pool)
        large = Gang((GangRole("worker", members, ResourceRequest(1, 1, 2)),), node_selector=pool)
        if number < blocked:
            arrivals.append(Arrival(f"holder-{number}", 0.0, 90_000.0, one, one.shape(), priority=95))
            arrivals.append(Arrival(f"other-{number}", 1.0, 90_000.0, one, one.shape(), priority=95))
        priority = 90 if number < blocked else 50
        arrivals.append(Arrival(f"big-{number}", 1000.0, 900.0, large, large.shape(), priority=priority))
    outcome = Simulation(Scenario("pools", cluster, tuple(arrivals), policy=BY_SERVICE)).run()
    started = outcome.jobs[f"big-{blocked}"].started_s
    assert started is not None
    assert started <= 1000.0 + 2 * 900.0


def test_a_gang_that_needs_a_part_of_a_node_is_not_starved_by_jobs_of_unknown_end() -> None:
    # What the gang would leave over on its node is room for others only once its own part is free there.
    whole = Amounts(64, 64, {"H100": 4})
    two = Gang((GangRole("worker", 1, ResourceRequest(1, 1, 2)),))
    one = Gang((GangRole("worker", 1, ResourceRequest(1, 1, 1)),))
    small = [Arrival(f"small-{n:04}", n * 200.0, 900.0, one, one.shape()) for n in range(300)]
    big = Arrival("big", 3000.0, 900.0, two, two.shape())
    outcome = Simulation(
        Scenario("part", (NodeSnapshot("n0", {}, whole, whole),), (*small, big), policy=BY_SERVICE)
    ).run()
    started = outcome.jobs["big"].started_s
    assert started is not None
    assert started <= 3000.0 + 2 * 900.0


@pytest.mark.parametrize("is_resumable", [False, True])
@pytest.mark.parametrize("members", [1, 2])
def test_an_overtaken_gang_starts_in_an_order_by_length_while_the_stream_goes_on(
    members: int, is_resumable: bool
) -> None:
    # Half of the cluster is busy at any time, but never the other half free in one piece. Nobody else waits, so the
    # gang is overtaken after half an hour; then it waits for the last run time, or takes the room back.
    whole = Amounts(64, 64, {"H100": 2})
    cluster = tuple(NodeSnapshot(f"n{number}", {"pool": "0"}, whole, whole) for number in range(2))
    small = [replace(arrival, is_resumable=is_resumable) for arrival in _stream("small", 0, 900.0)]
    gang = Gang((GangRole("worker", members, ResourceRequest(1, 1, 2)),), node_selector=(("pool", "0"),))
    big = Arrival("big", 1000.0, 900.0, gang, gang.shape())
    started = Simulation(Scenario("stream", cluster, (*small, big), policy=BY_LENGTH)).run().jobs["big"].started_s
    assert started is not None
    assert started <= 1000.0 + OVERTAKEN_AFTER_S + 900.0
