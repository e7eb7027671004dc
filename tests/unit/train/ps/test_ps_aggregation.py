"""Which gradients count: staleness, backup workers, warm-up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from trainmaster_train.ps import Options  # noqa: E402
from trainmaster_train.ps.layout import layout_of  # noqa: E402
from trainmaster_train.ps.server.aggregation import GradientAggregator, Push, WorkerMembership  # noqa: E402
from trainmaster_train.ps.server.shard import Shard  # noqa: E402

from tests.unit.train.ps.loopback import WITHIN_S, Cluster, loss_of, step, together, values_of  # noqa: E402


def rounds(**options: Any) -> GradientAggregator:
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return GradientAggregator(Shard(layout_of(model, optimizer), optimizer, 0, 1), Options(**options))


def push(worker: int, version: int, gradient: float = -1.0) -> Push:
    return Push(worker, version, [torch.tensor([gradient])], {})


def value(rounds: GradientAggregator) -> float:
    return float(rounds.shard.values[0])


def test_staleness_is_what_others_applied_between_pull_and_push() -> None:
    one = rounds()

    assert [one.take(push(worker, 0)).staleness for worker in range(3)] == [0, 1, 2]  # type: ignore[union-attr]
    assert str(one.staleness) == "3 gradients, staleness mean 1.00, largest 2"


def test_a_gradient_beyond_the_bound_is_dropped_and_counted() -> None:
    one = rounds(max_staleness=1)
    outcomes = [one.take(push(0, 0)).outcome for _ in range(3)]  # type: ignore[union-attr]

    assert outcomes == ["applied", "applied", "too_stale"]
    assert (value(one), one.shard.version, one.staleness.too_stale) == (2.0, 2, 1)


def test_a_stale_gradient_moves_less() -> None:
    one = rounds(scale_by_staleness=True)
    for _ in range(5):
        one.take(push(0, 0))

    assert value(one) == pytest.approx(1 + 1 + 1 / 2 + 1 / 3 + 1 / 4)
    assert one.take(push(0, 5)) is not None
    assert value(one) == pytest.approx(3 + 1 / 12 + 1)


def test_a_version_from_before_a_restart_is_not_stale() -> None:
    one = rounds(max_staleness=0)

    result = one.take(push(0, 900))

    assert result is not None
    assert (result.outcome, result.staleness) == ("applied", 0)


def test_a_step_takes_the_first_gradients_and_drops_the_late_one() -> None:
    one = rounds(mode="sync", backup_workers=1)
    everybody = [0, 1, 2]

    assert one.take(push(0, 0, -1.0)) is None
    assert not one.is_complete(everybody)
    assert one.take(push(2, 0, -3.0)) is None
    assert one.is_complete(everybody)
    assert [result.worker for result in one.close()] == [0, 2]
    assert value(one) == 2.0
    late = one.take(push(1, 0, -100.0))

    assert late is not None
    assert (late.outcome, late.staleness, value(one), one.staleness.late) == ("late", 1, 2.0, 1)


def test_a_worker_that_comes_back_counts_once_in_a_step() -> None:
    one = rounds(mode="sync")
    for _ in range(2):
        assert one.take(push(0, 0)) is None
    assert not one.is_complete([0, 1])
    one.take(push(1, 0))
    one.close()

    assert value(one) == 1.0


def test_a_lost_worker_is_waited_for_and_then_not() -> None:
    membership = WorkerMembership(2, Options(mode="sync", lost_timeout_s=10.0, join_timeout_s=50.0), now=0.0)
    membership.mark_joined(0, b"a")
    membership.mark_joined(1, b"b")
    assert membership.expected(1.0) == [0, 1]
    assert membership.mark_lost(1, b"b", 5.0)
    assert membership.expected(14.0) == [0, 1]
    assert membership.describe([1], 14.0) == "worker 1 (lost 9 s ago)"
    assert membership.expected(15.0) == [0]
    membership.mark_joined(1, b"c")
    assert membership.expected(99.0) == [0, 1]
    membership.mark_left(1)
    assert membership.expected(99.0) == [0]


def test_a_worker_that_never_came_has_the_time_to_start() -> None:
    membership = WorkerMembership(2, Options(mode="sync", lost_timeout_s=10.0, join_timeout_s=50.0), now=0.0)
    membership.mark_joined(0, b"a")

    assert membership.expected(49.0) == [0, 1]
    assert membership.describe([0, 1], 49.0) == "worker 0 (still computing), worker 1 (never came)"
    assert membership.expected(50.0) == [0]


def test_an_old_connections_end_does_not_lose_the_new_one() -> None:
    membership = WorkerMembership(1, Options(), now=0.0)
    membership.mark_joined(0, b"old")

    assert membership.mark_joined(0, b"new") == b"old"
    assert not membership.mark_lost(0, b"old", 1.0)
    assert membership.identity_of(0) == b"new"


def test_with_a_backup_worker_a_step_does_not_wait_for_the_slowest(cluster: Callable[..., Cluster]) -> None:
    job = cluster(2, Options(mode="sync", backup_workers=1), workers=3)
    membership = [job.join(rank) for rank in range(3)]
    slow_model, slow = membership[2]
    loss_of(slow_model, 99).backward()  # and does not push yet

    together(*(lambda rank=rank: [step(*membership[rank], number) for number in range(4)] for rank in range(2)))
    slow.step()

    assert slow.version == 4
    assert (slow.staleness.pushes, slow.staleness.late) == (0, 1)
    assert [status["late"] for status in slow.status()] == [1, 1]
    assert torch.equal(values_of(slow_model), values_of(membership[0][0]))


@pytest.mark.parametrize(
    "orders",
    [
        # The first ps has closed one step less than the second when the late worker's gradient is there.
        ([0, 1, 0, 1, 0, 2, 1], [0, 1, 0, 1, 0, 1, 2]),
        # And one more.
        ([0, 1, 0, 1, 2], [0, 1, 0, 2, 1]),
    ],
)
def test_a_late_worker_goes_on_from_one_update_of_all_ps(
    cluster: Callable[..., Cluster], orders: tuple[list[int], list[int]]
) -> None:
    """Each ps takes the workers' gradients in an order of its own."""
    job = cluster(2, Options(mode="sync", backup_workers=1, step_timeout_s=20.0), workers=3)
    membership = [job.join(rank) for rank in range(3)]
    pushed: list[tuple[int, set[int]]] = []
    for server, order in zip(job.servers, orders, strict=True):
        take_in_order(server._updates, order)

    def train(rank: int) -> None:
        model, servers = membership[rank]
        for _ in servers.steps(until=3):
            pushed.append((rank, set(servers.versions)))
            step(model, servers, rank)

    together(*(lambda rank=rank: train(rank) for rank in range(3)))

    assert all(len(versions) == 1 for _, versions in pushed), pushed
    assert [servers.versions for _, servers in membership] == [(3, 3)] * 3
    assert [server.version for server in job.servers] == [3, 3]


def take_in_order(updates: Any, order: list[int]) -> None:
    """Have ``updates`` take the pushes of the workers in ``order``, and those after that as they come."""
    take = updates.push
    waiting: list[Push] = []

    def push(push: Push) -> None:
        waiting.append(push)
        while ready := [one for one in waiting if not order or one.worker == order[0]]:
            waiting.remove(ready[0])
            if order:
                order.pop(0)
            take(ready[0])

    updates.push = push


# Who waits for a worker that does not come waits too long.
BACKED_UP = Options(mode="sync", backup_workers=1, lost_timeout_s=1e6)


def test_workers_do_not_wait_for_a_ps_that_came_back_with_older_values(cluster: Callable[..., Cluster]) -> None:
    job = cluster(2, BACKED_UP, workers=2)
    model, servers = job.join(0)
    job.join(1)
    path = servers.checkpoint()
    for number in range(3):
        step(model, servers, number)
    job.stop(1)
    job.start(1, path)

    step(model, servers, 3)  # on its way to the ps that is lost: given up there
    step(model, servers, 4)
    assert servers.versions == (5, 1)

    job.joined.pop(1).close(is_done=False)

    def join_again() -> None:
        again, others = job.join(1)  # which cannot know that one came back
        step(again, others, 5)
        assert others.versions == (6, 2)

    together(join_again)


@pytest.mark.parametrize("came_back", [False, True])
def test_a_worker_that_lost_a_connection_continues_from_one_update_of_all_ps(
    cluster: Callable[..., Cluster], came_back: bool
) -> None:
    """Also when a ps came back with older values before, once all are at the same update again."""
    job = cluster(2, BACKED_UP, workers=2)
    model, servers = job.join(0)
    if came_back:
        path = servers.checkpoint()
        step(model, servers, 0)
        for ps in range(2):
            job.stop(ps)
            job.start(ps, path)
        step(model, servers, 1)  # given up at both
    other, others = job.join(1)
    servers._shards.connections[1].close()

    def late() -> None:
        deadline = time.monotonic() + WITHIN_S
        while servers.version == 0 and time.monotonic() < deadline:  # it has joined the second one again by then
            time.sleep(0.01)
        step(other, others, 2)

    together(lambda: step(model, servers, 2), late)

    assert (servers.versions, others.versions) == ((1, 1), (1, 1))


def test_no_worker_waits_for_an_update_that_cannot_be_completed(cluster: Callable[..., Cluster]) -> None:
    job = cluster(2, BACKED_UP, workers=2)
    membership = [job.join(rank) for rank in range(2)]
    for _, servers in membership:
        servers._shards.connections[1].close()

    together(*(lambda rank=rank: step(*membership[rank], rank) for rank in range(2)))  # given up at the second ps

    assert [servers.versions for _, servers in membership] == [(1, 0)] * 2


def test_ps_that_are_one_update_apart_are_at_the_same_one_after_a_step(cluster: Callable[..., Cluster]) -> None:
    """As after all workers lost their connections to one of them: else the last checkpoint would be of mixed
    updates.
    """
    job = cluster(2, BACKED_UP, workers=2)
    membership = [job.join(rank) for rank in range(2)]
    for _, servers in membership:
        servers._shards.connections[1].close()

    def train(rank: int) -> None:
        model, servers = membership[rank]
        for number in range(2):
            step(model, servers, rank + number)

    together(*(lambda rank=rank: train(rank) for rank in range(2)))

    assert [server.version for server in job.servers] == [1, 1]
    together(*(lambda rank=rank: step(*membership[rank], rank) for rank in range(2)))
    assert [server.version for server in job.servers] == [2, 2]


def test_a_pull_of_a_future_update_is_answered_without_values(cluster: Callable[..., Cluster]) -> None:
    job = cluster(1, BACKED_UP, workers=2)
    _, servers = job.join(0)

    def ask() -> tuple[dict[str, Any], list[Any]]:
        wanted = {"op": "pull", "least": 1}
        return servers._shards.connections[0].ask(wanted, timeout_s=WITHIN_S, purpose="a pull")

    alone, frames = ask()
    assert (alone["not_yet"], alone["is_stuck"], "shared" in alone, frames) == (True, False, False, []), (
        "the other one has not come yet"
    )
    job.join(1)
    assert ask()[0]["is_stuck"] is False, "the other one may make it"
    job.joined.pop(1).close(is_done=False)
    assert ask()[0]["is_stuck"] is True


def test_in_the_warm_up_the_chief_trains_alone(cluster: Callable[..., Cluster]) -> None:
    job = cluster(1, Options(warmup_updates=3), workers=2)
    model, servers = job.join(0)
    seen: list[int] = []

    def late() -> None:
        _, other = job.join(1)
        seen.append(other.version)

    def chief() -> None:
        for number in range(3):
            assert not seen
            step(model, servers, number)

    together(late, chief)

    assert seen == [3]


def test_the_arrival_of_a_worker_is_described() -> None:
    membership = WorkerMembership(2, Options(), now=0.0)
    assert membership.describe_arrival(1, now=1.0) == "joined"
    membership.mark_joined(1, b"a")
    assert membership.describe_arrival(1, now=2.0) == "is back, and its connection before was not known to be over,"
    membership.mark_joined(1, b"b")
    assert not membership.mark_lost(1, b"a", now=3.0), "it has another connection by now"
    assert membership.mark_lost(1, b"b", now=4.0)
    assert membership.describe_arrival(1, now=16.0) == "is back 12 s after it was lost,"
    membership.mark_joined(1, b"c")
    membership.mark_left(1)
    assert membership.describe_arrival(1, now=17.0) == "joined again"
