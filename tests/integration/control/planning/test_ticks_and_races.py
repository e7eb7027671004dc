"""Ticks, and two who act at once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import update

from core.db.engine import unit_of_work
from core.db.tables import (
    Attempt,
    Lease,
    Node,
    Replica,
)
from core.domain.errors import ExecutorTryAgain, StaleWrite
from core.domain.ids import AttemptId
from core.domain.jobs.layout import Layout
from executors.fake import FakeExecutor, InjectedFault, Script
from scheduler.control import fence
from scheduler.control.attempts.launching.replica_orders import AddressCache, addresses_of
from scheduler.control.attempts.reconcile_result import ReconcileOutcome
from scheduler.control.attempts.storage.attempt_loader import SpecCache, load_attempts
from scheduler.control.attempts.storage.attempt_writer import AttemptWriter
from scheduler.control.attempts.storage.statement_batch import flush
from scheduler.control.maintenance.nodes import sync_nodes
from scheduler.planning import plan
from scheduler.planning.model import Plan


def test_a_tick_with_nothing_new_looks_and_leaves(plane):
    plane.submit(gpus=64)
    plane.settle()
    assert plane.ticker.tick().is_skipped
    plane.submit("news", gpus=1)
    assert plane.ticker.tick().started == 1


def test_only_a_tick_that_came_to_its_end_is_marked(plane, monkeypatch):
    plane.submit()
    plane.ticker.tick()
    done_at = plane.one(Lease, name="tick.done").expires_at
    assert done_at == plane.engine.now
    plane.engine.advance(timedelta(seconds=30))
    monkeypatch.setattr("scheduler.control.planning.tick.plan_to_apply", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        plane.ticker.tick()
    assert plane.one(Lease, name="tick.done").expires_at == done_at
    assert plane.one(Lease, name="tick").expires_at > plane.engine.now


def test_a_gang_that_moved_since_the_plan_undoes_no_other(plane, monkeypatch):
    jobs = [plane.submit(f"j{number}", workers=2) for number in range(3)]

    def planned(snapshot):
        plane.want(jobs[1], "cancel")
        return plan(snapshot)

    monkeypatch.setattr("scheduler.control.planning.tick.plan_to_apply", planned)
    assert plane.ticker.tick().started == 2
    assert [plane.state(job) for job in jobs] == ["starting", "queued", "starting"]
    assert len(plane.all(Replica)) == 4
    assert plane.story(jobs[1]) == []


def test_of_two_gangs_for_one_place_the_second_is_left_whole(plane, monkeypatch):
    jobs = [plane.submit(f"j{number}", gpus=2) for number in range(2)]

    def planned(snapshot):
        (start,) = plan(snapshot).starts
        return Plan((start, replace(start, job_id=next(job for job in jobs if job != start.job_id))))

    monkeypatch.setattr("scheduler.control.planning.tick.plan_to_apply", planned)
    assert plane.ticker.tick().started == 1
    assert sorted(plane.state(job) for job in jobs) == ["queued", "starting"]
    assert [replica.gpus for replica in plane.all(Replica)] == [["0", "1"]]


def test_a_gang_that_cannot_be_written_keeps_no_other_back(plane, monkeypatch):
    jobs = [plane.submit(f"j{number}") for number in range(3)]

    def planned(snapshot):
        made = plan(snapshot)
        return Plan(tuple(map(broken, made.starts)))

    def broken(start):
        roleless = tuple(replace(placement, role="no such role") for placement in start.placements)
        return replace(start, placements=roleless) if start.job_id == jobs[1] else start

    monkeypatch.setattr("scheduler.control.planning.tick.plan_to_apply", planned)
    assert plane.ticker.tick().started == 2
    assert [plane.state(job) for job in jobs] == ["starting", "queued", "starting"]
    assert len(plane.all(Attempt)) == 2


def test_two_gangs_never_get_the_same_port(plane):
    plane.engine.script("worker", Script(run_for=None))
    jobs = [plane.submit(f"j{number}", workers=2) for number in range(4)]
    plane.engine.next_port = 59_990
    plane.settle()
    layouts = [plane.one(Attempt, job_id=job).layout for job in jobs]
    ports = [port for layout in layouts for replica in layout for port in replica["ports"]]
    assert len(ports) == len(set(ports)) == 32


def test_layouts_are_read_once_and_forgotten_with_their_attempts(plane, sessions, monkeypatch):
    plane.engine.script("worker", Script(run_for=None))
    jobs = [plane.submit(f"j{number}") for number in range(3)]
    plane.settle()
    attempts = [plane.one(Attempt, job_id=job) for job in jobs]
    of_each = [addresses_of(Layout.from_json(attempt.layout)) for attempt in attempts]
    taken = AddressCache()
    with unit_of_work(sessions) as session:
        assert taken.read(session) == of_each[0] | of_each[1] | of_each[2]
    monkeypatch.setattr("scheduler.control.attempts.launching.replica_orders.Layout", None)  # nothing is left to read
    with unit_of_work(sessions) as session:
        assert taken.read(session) == of_each[0] | of_each[1] | of_each[2]
    monkeypatch.undo()
    plane.want(jobs[2], "cancel")
    plane.settle()
    plane.advance(60)
    with unit_of_work(sessions) as session:
        assert taken.read(session) == of_each[0] | of_each[1]


def test_no_ports_are_allocated_where_attempts_share_no_host(plane, monkeypatch):
    monkeypatch.setattr(FakeExecutor, "shares_hosts", False)
    monkeypatch.setattr(plane.reconciler._taken, "read", lambda *_, **__: 1 / 0)
    job = plane.submit()
    plane.settle()
    assert plane.state(job) == "running"
    assert not plane.all(Lease, name="ports")


def test_an_engine_that_is_away_says_nothing_about_its_nodes(plane):
    plane.start()
    executor = FakeExecutor(
        plane.engine, lambda call, _: InjectedFault.BEFORE if call == "nodes" else InjectedFault.NONE
    )
    with pytest.raises(ExecutorTryAgain):
        sync_nodes(replace(plane.control, executor=executor))
    assert plane.one(Node).is_ready


def test_a_late_sync_of_nodes_leaves_them_to_the_other_process(plane):
    plane.start()
    other = replace(plane.control, holder="other")
    real = plane.control.executor

    class Slow:
        """Lists its nodes for so long that the other takes the lease over meanwhile."""

        name = real.name

        def nodes(self, *, database_id):
            plane.engine.advance(timedelta(seconds=16))
            sync_nodes(other)
            return ()

    assert sync_nodes(replace(plane.control, executor=Slow())) == 0
    assert plane.one(Node).is_ready


def late_creation_of(index):
    """Creating this worker is answered with an error, and happens five seconds later."""
    return lambda call, subject: (
        InjectedFault.LATE if call == "create" and f"index={index}" in subject else InjectedFault.NONE
    )


def test_a_creation_that_comes_after_the_end_of_its_attempt_starts_nothing(plane):
    plane.engine.script("worker", Script(run_for=None))
    plane.start(late_creation_of(0))
    job = plane.submit()
    plane.settle()
    plane.want(job, "cancel")
    plane.settle()
    assert plane.state(job) == "cancelled"
    plane.advance(10)
    assert not plane.engine.starts
    assert not plane.engine.violations


def test_a_place_is_free_only_when_nothing_can_come_to_it_any_more(plane):
    plane.engine.script("worker", Script(run_for=None, ends_after_term=None))
    plane.start(late_creation_of(1))
    job = plane.submit(workers=2, gpus=1)
    plane.settle()
    plane.start()
    plane.want(job, "cancel")
    other = plane.submit("other", gpus=1)
    plane.advance(1)
    stopped = plane.one(Replica, job_id=job, index=1)
    assert stopped.state == "stopped"
    assert plane.state(other) == "queued"  # worker-0 lives out its grace, and worker-1 may still appear
    plane.advance(5)
    assert len(plane.engine.live()) == 2
    plane.advance(40)
    assert (plane.state(job), plane.state(other)) == ("cancelled", "running")


def test_a_process_that_has_lost_its_lease_writes_nothing_and_stops(plane):
    other, reached = replace(plane.control, holder="other"), []
    with fence.leased(plane.control, "job") as lease:
        plane.engine.advance(timedelta(seconds=16))
        with fence.leased(other, "job") as taken_over:
            assert taken_over is not None
        with pytest.raises(StaleWrite):
            lease.renew()
        with lease.fenced():
            reached.append("behind the fence")
        reached.append("after the fence")
    assert reached == []


def test_the_lease_of_a_block_that_failed_is_not_released(plane):
    with pytest.raises(ZeroDivisionError), fence.leased(plane.control, "job"):
        _ = 1 // 0
    with fence.leased(replace(plane.control, holder="other"), "job") as refused:
        assert refused is None
    with fence.leased(plane.control, "job") as again:
        assert again is not None
    with fence.leased(replace(plane.control, holder="other"), "job") as released:
        assert released is not None


@pytest.mark.parametrize("moved", [{"generation": 2}, {"state": "lost"}])
def test_replicas_of_which_one_has_moved_are_not_written(plane, moved):
    job = plane.submit(workers=3)
    plane.ticker.tick()
    attempt = plane.one(Attempt, job_id=job)
    now = plane.engine.now
    with unit_of_work(plane.sessions) as session:
        (rows,) = load_attempts(
            session, [AttemptId(attempt.id)], SpecCache(), now=now, node_grace=timedelta(60)
        ).values()
        session.execute(update(Replica).where(Replica.index == 1).values(**moved))
    with pytest.raises(StaleWrite, match="one has moved since it was read"), unit_of_work(plane.sessions) as session:
        writer = AttemptWriter(rows, now)
        writer.created(rows.members, {})
        flush(session, [writer.writes])
    first, second, third = sorted(plane.all(Replica), key=lambda replica: replica.index)
    assert first.state == third.state == "pending"
    assert {key: getattr(second, key) for key in moved} == moved
    assert plane.one(Attempt, job_id=job).generation == attempt.generation


def test_attempts_are_written_together_and_each_alone_where_one_has_moved(plane, monkeypatch):
    from scheduler.control.attempts.storage import transaction_batcher

    plane.engine.script("worker", Script(run_for=None))
    jobs = [plane.submit(f"j{number}") for number in range(3)]
    plane.ticker.tick()
    sizes, real = [], transaction_batcher.flush

    def move_one(session, all_writes):
        sizes.append(len(all_writes))
        if len(sizes) == 1:  # in the moment between what was read and what is written
            session.execute(update(Attempt).where(Attempt.job_id == jobs[1]).values(generation=7))
        real(session, all_writes)

    monkeypatch.setattr(transaction_batcher, "flush", move_one)
    attempts = [AttemptId(plane.one(Attempt, job_id=job).id) for job in jobs]
    looks = plane.reconciler.reconcile_all(attempts)
    assert sizes[:4] == [3, 1, 1, 1]
    assert len(sizes) < 4 + 3 * 3, "those after it are together again"
    assert all(look.outcome is ReconcileOutcome.IN_SYNC for look in looks.values())
    assert [plane.state(job) for job in jobs] == ["running"] * 3
    assert all(lease.expires_at <= plane.engine.now for lease in plane.all(Lease) if lease.name != "ports")
