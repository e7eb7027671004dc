"""What of a node is kept for its free GPUs, whom that binds, and what they are told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from core.domain.errors import InvalidRequest
from core.domain.ids import JobId, NodeId
from core.domain.sharing.policy import QueueOrder, parse_policy
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import (
    Account,
    Booking,
    NodeSnapshot,
    Plan,
    Policy,
    QueuedGang,
    Quota,
    Reason,
    RunningGang,
    Snapshot,
    WaitReasonCode,
    plan,
)
from scheduler.planning.forecast.alternatives import AlternativeCode
from scheduler.planning.forecast.what_if import forecast
from scheduler.planning.placement.fragmentation import WorkloadProfile
from scheduler.planning.placement.gpu_headroom import headroom_per_gpu
from scheduler.planning.queue.shares import GPUS, JOBS, model_key

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
GIB = 2**30


def node(
    name: str, cpu: int, gpus: int = 0, *, model: str = "H100", free: Amounts | None = None, **more: Any
) -> NodeSnapshot:
    whole = Amounts(cpu * 1000, 256 * GIB, {model: gpus} if gpus else {})
    return NodeSnapshot(NodeId(name), more.pop("labels", {}), whole, free or whole, **more)


def asks(cpu: int, gpus: int = 0, *models: str, milli: int = 0, memory: int = GIB, role: str = "worker") -> GangRole:
    return GangRole(role, 1, ResourceRequest(cpu * 1000, memory, gpus, models, milli))


def job(
    name: str, *roles: GangRole, age: int = 0, priority: int = 50, limit: float | None = None, **more: Any
) -> QueuedGang:
    wanted = Gang(roles, **more)
    at = NOW - timedelta(seconds=age)
    return QueuedGang(JobId(name), name, "p", "u", priority, at, wanted, wanted.shape(), limit)


EIGHTS = Gang((GangRole("worker", 2, ResourceRequest(64_000, GIB, 8)),))


def runs(name: str, role: GangRole, on: str, minutes: float | None = None, **more: Any) -> RunningGang:
    end = None if minutes is None else NOW + timedelta(minutes=minutes)
    return RunningGang(JobId(name), name, "p", 50, Gang((role,)), ((role.role, NodeId(on)),), end, **more)


def planned(
    nodes: list[NodeSnapshot], *queued: QueuedGang, running: tuple[RunningGang, ...] = (), policy: Policy | None = None
) -> Plan:
    policy = policy or Policy(order=QueueOrder.ATTAINED_SERVICE, time_slice_s=None)
    return plan(Snapshot(NOW, tuple(nodes), queued, running, policy=policy))


def places(made: Plan) -> dict[str, list[str]]:
    return {start.job_id: [placement.node for placement in start.placements] for start in made.starts}


# Half of the node's GPUs are taken with 8 CPUs each, as jobs are wont to ask: 32 of the 36 CPUs that are left are for
# the other four.
TAKEN = runs("trains", asks(32, 4), "gpu-07")
HALF = node("gpu-07", 68, 8, free=Amounts(36_000, 200 * GIB, {"H100": 4}))
SMALL = node("cpu-1", 16)


def reason(*queued: QueuedGang, nodes: list[NodeSnapshot] | None = None, **more: Any) -> Reason:
    made = planned(nodes or [HALF, replace(SMALL, free=Amounts(2_000, 64 * GIB))], *queued, running=(TAKEN,), **more)
    return made.waits[JobId("me")]


def test_it_leaves_what_the_free_gpus_need_and_takes_what_is_spare() -> None:
    full = replace(SMALL, free=Amounts(0, 64 * GIB))
    assert places(planned([HALF, full], job("me", asks(4)), running=(TAKEN,))) == {"me": ["gpu-07"]}
    assert not planned([HALF, full], job("me", asks(5)), running=(TAKEN,)).starts


def test_the_headroom_reason_names_node_gpus_and_nodes_without_gpus() -> None:
    why = reason(job("me", asks(8)))
    assert why.code is WaitReasonCode.GPU_HEADROOM
    assert why.sentence.startswith(
        "needs 8 CPUs and 1 GiB of memory on one node for its worker; 36 CPUs are free on gpu-07, of which 32 "
        "CPUs are kept "
        "for its 4 free GPUs; of the nodes without GPUs cpu-1 comes nearest with 2 CPUs free"
    )
    assert why.numbers["kept_cpu_milli"] == 32_000
    assert why.numbers["free_cpu_milli"] == 36_000
    assert (why.numbers["node"], why.numbers["free_gpu_milli"], why.numbers["binding"]) == ("gpu-07", 4000, ["cpu"])


def test_the_reason_says_if_all_free_amounts_are_headroom() -> None:
    free = replace(HALF, free=Amounts(24_000, 200 * GIB, {"H100": 3}))
    why = reason(job("me", asks(8)), nodes=[free, replace(SMALL, free=Amounts(0, 0))])
    assert "24 CPUs are free on gpu-07, but kept for its 3 free GPUs" in why.sentence


def test_headroom_includes_memory() -> None:
    running = runs("trains", asks(1, 4, memory=100 * GIB), "gpu-07")
    free = replace(HALF, free=Amounts(60_000, 156 * GIB, {"H100": 4}))
    full = replace(SMALL, free=Amounts(0, 0))
    made = planned([free, full], job("fits", asks(1, memory=56 * GIB)), running=(running,))
    assert places(made) == {"fits": ["gpu-07"]}
    why = planned([free, full], job("me", asks(1, memory=57 * GIB)), running=(running,)).waits[JobId("me")]
    assert "156 GiB of memory is free on gpu-07, of which 100 GiB of memory is kept for its 4 free GPUs" in why.sentence
    assert why.numbers["binding"] == ["memory"]


def test_without_gpu_demand_there_is_no_headroom() -> None:
    made = planned([node("gpu-07", 8, 4), replace(SMALL, free=Amounts(0, 0))], job("me", asks(8)))
    assert places(made) == {"me": ["gpu-07"]}


def test_a_gpu_model_without_demand_has_no_headroom() -> None:
    nodes = [node("a", 8, 4, model="A100"), node("h", 8, 4), replace(SMALL, free=Amounts(0, 0))]
    waits = job("later", asks(4, 2, "H100"), age=9)
    made = planned(
        [replace(nodes[0]), replace(nodes[1], free=Amounts(8_000, GIB, {"H100": 1})), nodes[2]],
        job("me", asks(8)),
        waits,
    )
    assert places(made)["me"] == ["a"]


@pytest.mark.parametrize(
    ("quota", "keeps"),
    [
        (Quota(), True),
        (Quota(limit={GPUS: 0}), False),
        (Quota(limit={GPUS: 15_000}), False),
        (Quota(limit={GPUS: 16_000}), True),
        (Quota(limit={JOBS: 0}), False),
        (Quota(limit={JOBS: 1}), True),  # used up: it starts after that one
        (Quota(user_limit={GPUS: 0}), False),
        (Quota(user_limits={"v": {GPUS: 0}}), True),
        (Quota(limit={model_key("H100"): 0}), False),
        # It may have A100s, and of these there are not enough; or there are.
        (Quota(limit={model_key("H100"): 15_000, model_key("A100"): 8_000}), False),
        (Quota(limit={model_key("A100"): 0}), True),
    ],
)
def test_jobs_that_their_quota_never_lets_start_are_no_headroom_demand(quota: Quota, keeps: bool) -> None:
    nodes = [
        *(node(f"h-{number}", 64, 8) for number in range(2)),
        node("a-1", 64, 8, model="A100"),
        node("cpu-1", 64, free=Amounts(0, 0)),
    ]
    never = QueuedGang(JobId("never"), "never", "q", "u", 50, NOW, EIGHTS, EIGHTS.shape())
    runs_one = replace(runs("one", asks(64), "cpu-1"), project="q")
    accounts = (Account("q", quota=quota),)
    me = job("me", asks(50), age=60)
    made = plan(Snapshot(NOW, tuple(nodes), (me, never), (runs_one,), accounts=accounts))
    assert ("me" not in places(made)) == keeps


@pytest.mark.parametrize(
    ("booked", "in_hours", "limit_s", "keeps"),
    [
        ((), 0, None, True),
        (("h-0", "h-1"), 0, None, False),
        (("h-0", "h-1"), 0, 60.0, False),
        (("h-0",), 0, None, True),  # it takes the other one
        (("h-0", "h-1"), 1, None, False),  # it may not be over when that begins
        (("h-0", "h-1"), 1, 60.0, True),
    ],
)
def test_jobs_whose_nodes_are_all_booked_for_others_are_no_headroom_demand(
    booked: tuple[str, ...], in_hours: int, limit_s: float | None, keeps: bool
) -> None:
    nodes = [*(node(f"h-{number}", 64, 8) for number in range(2)), node("cpu-1", 64, free=Amounts(0, 0))]
    wanted = Gang((GangRole("worker", 1, ResourceRequest(64_000, GIB, 8, ("H100",))),))
    barred = QueuedGang(JobId("barred"), "barred", "q", "u", 50, NOW, wanted, wanted.shape(), limit_s)
    begins, ends = NOW + timedelta(hours=in_hours), NOW + timedelta(days=1)
    bookings = (Booking("b-1", "demo", "r", frozenset(map(NodeId, booked)), begins, ends),) if booked else ()
    me = replace(job("me", asks(50), age=60), project="r")
    runs_one = runs("one", asks(64), "cpu-1")
    made = plan(Snapshot(NOW, tuple(nodes), (me, barred), (runs_one,), bookings=bookings))
    assert ("me" not in places(made)) == keeps


def test_one_that_could_never_run_otherwise_takes_the_last_cpus() -> None:
    # Nothing but one laptop with a GPU: what is kept is all of it.
    laptop = node("laptop", 8, 1, free=Amounts(8_000, 200 * GIB, {"H100": 1}))
    later = job("later", asks(8, 1), priority=10)
    assert places(planned([laptop], job("me", asks(2)), later)) == {"me": ["laptop"]}


def test_one_whose_selector_leaves_it_only_gpu_nodes_takes_the_last_cpus() -> None:
    nodes = [replace(HALF, labels={"zone": "x"}), node("cpu-1", 64)]
    wanted = job("me", asks(36), node_selector=(("zone", "x"),))
    assert places(planned(nodes, wanted, running=(TAKEN,))) == {"me": ["gpu-07"]}


def test_members_without_gpus_of_a_gang_that_has_some_with_are_not_bound() -> None:
    server = asks(6, role="ps")
    made = planned([HALF, replace(SMALL, free=Amounts(0, 0))], job("me", server, asks(8, 1)), running=(TAKEN,))
    assert places(made) == {"me": ["gpu-07", "gpu-07"]}


def test_with_the_setting_off_it_is_a_preference() -> None:
    off = Policy(keeps_for_gpus=False)
    made = planned([HALF, replace(SMALL, free=Amounts(0, 0))], job("me", asks(30)), running=(TAKEN,), policy=off)
    assert places(made) == {"me": ["gpu-07"]}


def test_the_setting_is_a_switch() -> None:
    assert parse_policy({"keeps_for_gpus": False}).keeps_for_gpus is False
    with pytest.raises(InvalidRequest, match="keeps_for_gpus is true or false") as mistake:
        parse_policy({"keeps_for_gpus": 2})
    assert mistake.value.field == "keeps_for_gpus"


@pytest.mark.parametrize(("left", "fits"), [((), 4), ((500,), 0), ((500, 500), 0)])
def test_parts_of_gpus_keep_their_part(left: tuple[int, ...], fits: int) -> None:
    # One whole GPU is free and keeps 8 CPUs; half of another one keeps 4 more.
    shares = {"H100": left} if left else {}
    free = replace(HALF, free=Amounts(12_000, 200 * GIB, {"H100": 1}, shares))
    made = planned([free, replace(SMALL, free=Amounts(0, 0))], job("me", asks(4)), running=(TAKEN,))
    assert len(made.starts) == bool(fits)
    if left:
        reported = "1.5 free GPUs" if len(left) == 1 else "2 free GPUs"
        assert reported in made.waits[JobId("me")].sentence


def test_typical_is_what_three_in_four_of_the_gpus_get_along_with() -> None:
    usual, odd, part = (
        ResourceRequest(8_000, GIB, 1),
        ResourceRequest(96_000, GIB, 1),
        ResourceRequest(1_000, GIB, 0, (), 500),
    )
    assert headroom_per_gpu(WorkloadProfile(((usual, 3.0), (odd, 1.0)), 2), "H100") == (8_000, GIB)
    assert headroom_per_gpu(WorkloadProfile(((usual, 2.0), (odd, 1.0)), 2), "H100") == (96_000, GIB)
    assert headroom_per_gpu(WorkloadProfile(((part, 1.0),), 1), "H100") == (2_000, 2 * GIB)
    assert headroom_per_gpu(WorkloadProfile(((usual, 8.0),), 0), "H100") == (0, 0)  # only suspected


def test_headroom_never_exceeds_the_gpus_share_of_their_node() -> None:
    odd = runs("odd", asks(30, 1), "gpu-07")
    free = replace(HALF, free=Amounts(38_000, 200 * GIB, {"H100": 4}))
    # 68 CPUs are 8.5 for each of 8 GPUs: four keep 34.
    made = planned([free, node("cpu-1", 4, free=Amounts(0, 0))], job("me", asks(4)), running=(odd,))
    assert places(made) == {"me": ["gpu-07"]}


def test_no_job_is_preempted_for_the_headroom() -> None:
    small = runs("small", asks(2), "gpu-07", started_at=NOW - timedelta(hours=1), is_preemptible=True)
    full = replace(SMALL, free=Amounts(0, 0))
    taken = replace(HALF, free=Amounts(32_000, 200 * GIB, {"H100": 4}))
    urgent = job("me", asks(8), priority=90)
    made = planned([taken, full], urgent, running=(TAKEN, replace(small, priority=10)))
    assert not made.preempts
    assert made.waits[JobId("me")].code is WaitReasonCode.GPU_HEADROOM
    off = planned(
        [replace(taken, free=Amounts(6_000, 200 * GIB, {"H100": 4})), full],
        urgent,
        running=(TAKEN, replace(small, priority=10)),
        policy=Policy(keeps_for_gpus=False),
    )
    assert [one.job_id for one in off.preempts] == ["small"]


def behind_a_promise(*queued: QueuedGang) -> Plan:
    """In five hours ``wide`` has all GPUs and ``large`` the node cpu-1. Who ends later may use 28 CPUs of gpu-1
    beside that, but
    until then these are kept for the GPUs that are free.
    """
    nodes = [
        node("gpu-1", 64, 8, free=Amounts(44_000, 200 * GIB, {"H100": 8})),
        node("gpu-2", 64, 8, free=Amounts(16_000, 200 * GIB, {"H100": 0})),
        node("cpu-1", 40, free=Amounts(0, 200 * GIB)),
        node("cpu-2", 20, free=Amounts(0, 200 * GIB)),
    ]
    fixed = {"is_preemptible": False, "started_at": NOW - timedelta(hours=1)}
    trains = runs("trains", replace(asks(6, 1), replicas=8), "gpu-2", minutes=300, **fixed)
    running = (
        runs("stays", asks(20), "gpu-1", **fixed),
        replace(trains, nodes=trains.nodes * 8, gpu_models=("H100",) * 8),
        runs("ends", asks(40), "cpu-1", minutes=300, **fixed),
        replace(runs("victim", asks(20), "cpu-2", started_at=NOW - timedelta(hours=1)), priority=0),
    )
    wide = job("wide", replace(asks(2, 1), replicas=16), age=300, priority=60)
    large = job("large", asks(40), age=200, priority=60)
    return planned(nodes, wide, large, *queued, running=running)


def test_no_job_is_preempted_for_the_headroom_next_to_reservations() -> None:
    made = behind_a_promise(job("me", replace(asks(20), replicas=2)))
    assert not made.preempts
    assert made.waits[JobId("me")].code is WaitReasonCode.GPU_HEADROOM


def test_a_job_is_preempted_where_that_helps_beyond_headroom_and_reservations() -> None:
    assert [one.job_id for one in behind_a_promise(job("me", asks(20))).preempts] == ["victim"]


def test_a_job_with_gpus_takes_the_place_of_one_without_as_ever() -> None:
    bare = runs("bare", asks(36), "gpu-07", started_at=NOW - timedelta(hours=1))
    made = planned(
        [replace(HALF, free=Amounts(0, 200 * GIB, {"H100": 4})), SMALL],
        job("me", asks(32, 4), priority=90),
        running=(TAKEN, replace(bare, priority=10)),
    )
    assert [one.job_id for one in made.preempts] == ["bare"]


def test_its_reservation_is_on_nodes_without_gpus_while_jobs_with_gpus_start() -> None:
    full = replace(SMALL, free=Amounts(2_000, GIB))
    busy = runs("busy", asks(14), "cpu-1", minutes=30)
    first = job("me", asks(8), age=60)
    made = planned([HALF, full], first, job("next", asks(16, 2)), running=(TAKEN, busy))
    assert places(made) == {"next": ["gpu-07"]}
    assert "is to start on cpu-1 by about 12:30 UTC" in made.waits[JobId("me")].sentence


def test_where_there_are_only_gpu_nodes_its_reservation_leaves_the_gpus_their_cpus() -> None:
    bare = runs("bare", asks(4), "gpu-07")
    first = job("me", asks(4), age=60)
    full = replace(HALF, free=Amounts(32_000, 200 * GIB, {"H100": 4}))
    made = planned([full], first, job("next", asks(32, 4)), running=(TAKEN, bare))
    assert places(made) == {"next": ["gpu-07"]}
    assert "what becomes free on gpu-07 is kept for job me" in made.waits[JobId("me")].sentence


def test_elastic_jobs_do_not_grow_into_the_headroom() -> None:
    role = replace(asks(4), most=9)
    wanted = Gang((role,))
    one = QueuedGang(JobId("me"), "me", "p", "u", 50, NOW, wanted, wanted.shape())
    cluster = [replace(HALF, free=Amounts(44_000, 200 * GIB, {"H100": 4})), replace(SMALL, free=Amounts(0, 0))]
    assert len(planned(cluster, one, running=(TAKEN,)).starts[0].placements) == 3  # 12 of 44 CPUs are spare


def test_what_would_start_now_is_what_is_spare() -> None:
    nodes = (HALF, replace(SMALL, free=Amounts(2_000, 64 * GIB)))
    requested = forecast(Snapshot(NOW, nodes, (), (TAKEN,)), job("me", asks(8)))
    less = [option for option in requested.options if option.code is AlternativeCode.LESS_CPU]
    assert [option.value for option in less] == [4]
