"""Parts of GPUs in the database: which devices replicas get, and what is left for others."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.db.engine import unit_of_work
from core.db.tables import Attempt, Job, Replica
from core.domain.errors import StaleWrite
from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Gang
from scheduler.control.planning.node_cache import NodeCache, usage_of
from scheduler.control.planning.placing import StartOrder, place_all
from scheduler.planning.model import Placement, Start


def placed(plane, *names: str):
    """Start these jobs on node-0, as a plan would; what became of each."""
    orders = []
    for name in names:
        job = plane.one(Job, id=f"job-{name}")
        gang = Gang.from_json(job.gang)
        placements = tuple(
            Placement(role.role, index, NodeId("node-0"), "a100" if role.request.uses_gpu else None)
            for role in gang.roles
            for index in range(role.replicas)
        )
        orders.append(StartOrder(Start(JobId(job.id), placements), job.generation, gang))
    with unit_of_work(plane.sessions) as session:
        reported = place_all(session, orders, executor="fake", now=plane.engine.now)
    return [reported[JobId(f"job-{name}")] for name in names]


def devices(plane, name: str) -> list[str]:
    return [gpu for replica in plane.all(Replica, job_id=f"job-{name}") for gpu in replica.gpus]


def free(plane):
    fleet = NodeCache()
    with unit_of_work(plane.sessions) as session:
        (node,) = fleet.nodes(session, usage_of(fleet.holders(session).values()))
        return node.free


def test_two_halves_share_a_device_and_three_quarters_get_another(plane):
    plane.submit("one", gpus=0.5)
    plane.submit("two", gpus=0.5)
    plane.submit("three", gpus=0.75)
    placed(plane, "one", "two", "three")
    assert devices(plane, "one") == devices(plane, "two")
    assert devices(plane, "three") != devices(plane, "one")
    assert free(plane).gpus == {"a100": 0}
    assert free(plane).shares == {"a100": (0, 250)}


def test_whole_gpus_never_lie_on_a_shared_device(plane):
    plane.submit("part", gpus=0.1)
    plane.submit("whole", gpus=1)
    plane.submit("both", gpus=2)
    placed(plane, "part")
    (both,) = placed(plane, "both")
    assert isinstance(both, StaleWrite)
    placed(plane, "whole")
    assert set(devices(plane, "part")).isdisjoint(devices(plane, "whole"))


def test_a_part_goes_where_it_leaves_the_least(plane):
    for name, gpus in (("large", 0.7), ("middle", 0.5), ("small", 0.3)):
        plane.submit(name, gpus=gpus)
    placed(plane, "large")
    placed(plane, "middle")
    placed(plane, "small")
    assert devices(plane, "small") == devices(plane, "large")


def test_what_does_not_fit_any_more_is_stale_and_nothing_is_written(plane):
    for name, gpus in (("one", 0.6), ("two", 0.6), ("three", 0.6)):
        plane.submit(name, gpus=gpus)
    placed(plane, "one", "two")
    (stale,) = placed(plane, "three")
    assert isinstance(stale, StaleWrite)
    assert "no GPU with as large a part free" in str(stale)
    assert devices(plane, "three") == []


def test_a_gang_of_parts_is_dealt_out_larger_ones_first(plane):
    chief = {"resources": {"gpus": 0.4}}
    plane.submit("gang", workers=2, gpus=0.6, roles={"chief": chief})
    (attempt,) = placed(plane, "gang")
    assert isinstance(attempt, str)
    ranks = [(replica.role, replica.index) for replica in sorted(plane.all(Replica), key=lambda one: one.rank)]
    assert ranks == [("chief", 0), ("worker", 0), ("worker", 1)]
    assert free(plane).shares == {"a100": (0, 400)}


def test_the_end_of_the_last_part_gives_the_device_back_whole(plane):
    plane.submit("one", gpus=0.5)
    plane.submit("two", gpus=0.25)
    placed(plane, "one", "two")
    assert free(plane).gpus == {"a100": 1}
    assert free(plane).shares == {"a100": (250,)}
    with unit_of_work(plane.sessions) as session:
        for attempt in session.query(Attempt):
            attempt.state = "ended"
    assert free(plane).gpus == {"a100": 2}
    assert free(plane).shares == {}


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=st.lists(st.sampled_from([0.001, 0.2, 0.25, 0.5, 0.501, 0.75, 0.999, 1, 2]), min_size=1, max_size=8))
def test_no_device_is_ever_over_committed(plane, wanted):
    with unit_of_work(plane.sessions) as session:
        for table in (Replica, Attempt, Job):
            session.query(table).delete()
    for number, gpus in enumerate(wanted):
        plane.submit(str(number), gpus=gpus)
        placed(plane, str(number))
    taken: Counter[str] = Counter()
    for replica in plane.all(Replica):
        for gpu in replica.gpus:
            taken[gpu] += replica.gpu_milli or 1000
    assert all(milli <= 1000 for milli in taken.values())


def test_the_control_loop_starts_jobs_on_parts_and_the_next_one_when_room_is(plane):
    for name in ("one", "two", "three"):
        plane.submit(name, gpus=0.5)
    plane.settle()
    assert [plane.state(f"job-{name}") for name in ("one", "two", "three")] == ["running"] * 3
    taken = Counter(gpu for name in ("one", "two", "three") for gpu in devices(plane, name))
    assert sorted(taken.values()) == [1, 2]
    plane.submit("whole", gpus=1, priority=60)
    plane.submit("late", gpus=0.75)
    plane.settle()
    assert plane.state("job-whole") == plane.state("job-late") == "queued"
    lonely = next(name for name in ("one", "two", "three") if taken[devices(plane, name)[0]] == 1)
    plane.want(f"job-{lonely}", "cancel")
    plane.settle()
    assert plane.state("job-whole") == "running"
    assert plane.state("job-late") == "queued"
    assert plane.engine.violations == []
