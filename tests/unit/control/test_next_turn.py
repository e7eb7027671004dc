"""When the control loop looks again though nothing came or ended: at the end of a turn."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from core.domain.ids import JobId
from core.domain.sharing.resources import Gang, GangRole, ResourceRequest
from scheduler.control.planning.snapshot import next_turn
from scheduler.planning import Policy, QueuedGang, QueueOrder, RunningGang, Snapshot

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
GANG = Gang((GangRole("worker", 1, ResourceRequest(100, 1 << 20, 1)),))


def due_s(policy: Policy, *, ran_s: float, earlier_s: float = 0.0) -> float:
    waits = QueuedGang(JobId("q"), "q", "p", "u", 50, NOW, GANG, GANG.shape())
    began = NOW - timedelta(seconds=ran_s)
    runs = RunningGang(JobId("r"), "r", "p", 50, GANG, (), queued_at=NOW, started_at=began, earlier_s=earlier_s)
    at = next_turn(Snapshot(NOW, (), (waits,), (runs,), policy=policy))
    assert at is not None
    return (at - NOW).total_seconds()


def test_the_end_of_a_turn_is_looked_at_in_this_attempt_and_in_all_of_them() -> None:
    policy = Policy(order=QueueOrder.ATTAINED_SERVICE, time_slice_s=None, rotation_s=1800.0)
    assert due_s(policy, ran_s=100.0) == 200.0  # min_run_time
    assert due_s(policy, ran_s=1000.0) == 800.0
    # It had 1,500 s of a turn before: that one ends earlier, the next one in 1,700 s of this attempt.
    assert due_s(policy, ran_s=295.0, earlier_s=1500.0) == 5.0
    assert due_s(policy, ran_s=1800.0, earlier_s=1500.0) == 300.0
    assert due_s(replace(policy, rotation_s=None), ran_s=1000.0) == 24 * 3600.0  # somebody has starved


def test_a_job_that_has_waited_for_years_is_not_looked_at_for_being_overtaken() -> None:
    since = NOW - timedelta(days=4000)
    waits = QueuedGang(JobId("q"), "q", "p", "u", 50, since, GANG, GANG.shape())
    assert next_turn(Snapshot(NOW, (), (waits,), policy=Policy(order=QueueOrder.SHORTEST_FIRST))) is None
