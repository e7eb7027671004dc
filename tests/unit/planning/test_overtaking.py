"""When a job is overtaken: it waits much longer than the jobs that compete with it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import NodeSnapshot, Policy, QueuedGang, QueueOrder, RunningGang, Snapshot, plan
from scheduler.planning.queue.overtaking import Overtaking, next_overtaken_s

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
POLICY = Policy(order=QueueOrder.SHORTEST_FIRST, time_slice_s=600.0)


def gang(gpus: int, pool: str = "", members: int = 1, models: tuple[str, ...] = ()) -> Gang:
    request = ResourceRequest(1, 1, gpus, models)
    return Gang((GangRole("worker", members, request),), (("pool", pool),) if pool else ())


def waits(name: str, wait_s: float, needs: Gang, *, is_resumable: bool = False) -> QueuedGang:
    at = NOW - timedelta(seconds=wait_s)
    return QueuedGang(JobId(name), name, "p", "u", 50, at, needs, needs.shape(), is_resumable=is_resumable)


def runs(name: str, waited_s: float, needs: Gang, *, ran_s: float = 400.0, is_resumable: bool = False) -> RunningGang:
    began = NOW - timedelta(seconds=ran_s)
    return RunningGang(
        JobId(name), name, "p", 50, needs, (("worker", NodeId("n0")),), gpu_models=("H100",), user="u",
        queued_at=began - timedelta(seconds=waited_s), started_at=began, attained_gpu_s=ran_s,
        is_resumable=is_resumable,
    )  # fmt: skip


def snapshot(queued: list[QueuedGang], running: list[RunningGang], policy: Policy = POLICY, gpus: int = 4) -> Snapshot:
    whole = Amounts(64, 64, {"H100": gpus})
    left = gpus - sum(view.gang.gpu_count for view in running)
    nodes = (NodeSnapshot(NodeId("n0"), {}, whole, Amounts(60, 60, {"H100": left})),)
    return Snapshot(NOW, nodes, tuple(queued), tuple(running), policy=policy)


def is_overtaken(queued: list[QueuedGang], running: list[RunningGang], policy: Policy = POLICY) -> bool:
    return Overtaking(snapshot(queued, running, policy)).is_overtaken(queued[0])


def test_a_gang_is_overtaken_after_half_an_hour_if_others_do_not_wait() -> None:
    running = [runs(f"r{n}", 10.0, gang(1)) for n in range(3)]
    assert not is_overtaken([waits("big", 1799.0, gang(4))], running)
    assert is_overtaken([waits("big", 1800.0, gang(4))], running)
    assert not is_overtaken([waits("big", 1800.0, gang(4))], running, Policy(order=QueueOrder.FIFO))


def test_a_gang_is_overtaken_when_it_waits_eight_times_as_long_as_its_competitors() -> None:
    running = [runs(f"r{n}", 3600.0, gang(1)) for n in range(8)]
    assert not is_overtaken([waits("big", 7 * 3600.0, gang(4))], running)
    assert is_overtaken([waits("big", 9 * 3600.0, gang(4))], running)


def test_waits_in_other_pools_do_not_count() -> None:
    others = [waits(f"o{n}", 1e6, gang(4, "b")) for n in range(30)]
    running = [runs("r", 10.0, gang(1, "a"))]
    assert is_overtaken([waits("big", 1800.0, gang(4, "a")), *others], running)
    assert not is_overtaken([waits("big", 1800.0, gang(4)), *others], running)  # it may want any pool


@pytest.mark.parametrize(("wait_s", "starts"), [(600.0, True), (3600.0, False)])
def test_a_job_without_checkpoints_leaves_an_overtaken_gang_its_nodes(wait_s: float, starts: bool) -> None:
    made = plan(snapshot([waits("big", wait_s, gang(4)), waits("small", 1.0, gang(1))], [runs("r", 1.0, gang(1))]))
    assert ([start.job_id for start in made.starts] == ["small"]) == starts
    is_promised = made.waits[JobId("big")].numbers.get("reserved_for") == "big"
    assert is_promised != starts


def test_an_overtaken_gang_lends_its_room_and_takes_it_back_from_jobs_that_lose_nothing() -> None:
    running = [runs("r", 1.0, gang(1), is_resumable=True)]
    big = waits("big", 600.0, gang(4), is_resumable=True)
    small = waits("small", 1.0, gang(1), is_resumable=True)
    assert [start.job_id for start in plan(snapshot([big, small], running)).starts] == ["small"]
    made = plan(snapshot([waits("big", 3600.0, gang(4))], running))
    assert [preempt.job_id for preempt in made.preempts] == ["r"]
    lasting = [runs("r", 1.0, gang(1))]
    assert not plan(snapshot([waits("big", 3600.0, gang(4))], lasting)).preempts


def test_waits_are_compared_again_when_a_job_may_be_overtaken() -> None:
    assert next_overtaken_s([waits("a", 1000.0, gang(1)), waits("b", 10.0, gang(1))], NOW) == 800.0
    assert next_overtaken_s([waits("a", 1800.0, gang(1))], NOW) == pytest.approx(450.0)
    assert next_overtaken_s([], NOW) == float("inf")
    # It can never run, perhaps: no moment is so late that no clock shows it.
    assert next_overtaken_s([waits("a", 1e9, gang(1))], NOW) == float("inf")
