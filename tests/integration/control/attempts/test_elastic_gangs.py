"""Elastic gangs over a real database and the fake engine."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
import structlog
from sqlalchemy import update

from core.db.engine import unit_of_work
from core.db.repositories.allocations import read_allocations
from core.db.repositories.job_speeds import add_measurement, delete_of_deleted_jobs, points_of
from core.db.tables import Attempt, Event, Job, Lease, Node, Replica, Secret, Volume, WaitReason
from core.domain.errors import Unavailable
from core.domain.ids import AttemptId
from core.domain.jobs.exits import ExitCause
from core.domain.jobs.layout import Layout
from core.domain.sharing.resources import Amounts
from core.secrets import seal
from executors.base import NodeInfo, ReplicaKey
from executors.fake import FakeEngine, InjectedFault, ProcessKilled, Script
from executors.order_file import world_fields
from scheduler.control.attempts.worlds import CREATE_CALL_TIMEOUT, CREATE_PATIENCE
from scheduler.control.planning import tick
from scheduler.control.planning.placing import place_all
from tests.integration.control.conftest import KEY

TWO_TO_FOUR = {"min": 2, "max": 4}


def start(plane, **spec) -> str:
    plane.engine.script("worker", Script(run_for=timedelta(hours=1)))
    job = plane.submit(workers=TWO_TO_FOUR, cpu=2, **spec)
    plane.settle()
    return job


def key_of(plane, job: str, index: int, generation: int = 1) -> ReplicaKey:
    return ReplicaKey(job, plane.one(Attempt, job_id=job).id, "worker", index, generation)


def kill(plane, job: str, index: int, generation: int = 1) -> None:
    plane.engine.end(key_of(plane, job, index, generation), 137, ExitCause.SIGNALLED)


def world_of(plane, job: str) -> list[str]:
    layout = Layout.from_json(plane.one(Attempt, job_id=job).layout)
    return [f"{replica.role}-{replica.index}" for replica in layout.replicas]


def test_a_gang_shrinks_and_grows_again_in_one_attempt(plane):
    job = start(plane)
    first = Layout.from_json(plane.one(Attempt, job_id=job).layout)
    kill(plane, job, 0)
    plane.settle()
    attempt = plane.one(Attempt, job_id=job)
    assert attempt.state == "running"
    assert attempt.world == 3
    assert attempt.world_reason == "worker-0 joined. 4 of 2 to 4 workers go on."
    # Who stays comes first and keeps its order: rank 0 is one who has the state.
    assert world_of(plane, job) == ["worker-1", "worker-2", "worker-3", "worker-0"]
    ports = {replica.ports.torch for replica in Layout.from_json(attempt.layout).replicas}
    assert ports.isdisjoint(replica.ports.torch for replica in first.replicas)
    assert next(e.reason for e in plane.all(Event, kind="attempt.world")).startswith("World 2: worker-0 was ended")
    for index, generation in ((1, 1), (2, 1), (3, 1), (0, 2)):
        order = plane.engine.order_of(key_of(plane, job, index, generation))
        assert order.world == 3
        assert order.env["WORLD_SIZE"] == "4"
    assert plane.engine.order_of(key_of(plane, job, 1)).env["RANK"] == "0"


def test_without_a_free_place_it_stays_small_and_takes_the_first_that_is(plane):
    job = start(plane)
    plane.engine.script("worker", Script())
    other = plane.submit("other", cpu=2, priority=10)
    plane.settle()
    assert plane.state(other) == "queued"
    kill(plane, job, 3)
    plane.settle()
    # It waited for a place on the node: it has the better claim.
    assert plane.state(other) == "running"
    assert world_of(plane, job) == ["worker-0", "worker-1", "worker-2"]
    plane.advance(11)
    assert plane.state(other) == "succeeded"
    assert world_of(plane, job) == ["worker-0", "worker-1", "worker-2", "worker-3"]


def test_below_its_least_the_whole_gang_starts_again(plane):
    job = start(plane)
    for index in (0, 1, 2):
        kill(plane, job, index)
    plane.settle()
    attempts = plane.all(Attempt, job_id=job)
    assert [attempt.state for attempt in attempts] == ["ended", "running"]
    assert "1 of at least 2 workers is left." in next(e.reason for e in plane.all(Event, kind="attempt.stopping"))


def grow_beside(plane, *others: str) -> str:
    """A gang of two that may grow with the next tick, which starts ``others``, too, and leaves one to wait."""
    big = plane.submit("big", cpu=4)
    plane.settle()
    job = start(plane)
    assert world_of(plane, job) == ["worker-0", "worker-1"]
    plane.engine.end(ReplicaKey(big, plane.one(Attempt, job_id=big).id, "worker", 0, 1), 0, ExitCause.EXITED)
    plane.reconciler.reconcile(AttemptId(plane.one(Attempt, job_id=big).id))
    for name in others:
        plane.submit(name, cpu=1)
    plane.submit("wide", gpus=64)
    return job


def test_a_tick_that_lasts_longer_than_its_lease_would_writes_all_and_gives_it_back(plane, monkeypatch):
    job = grow_beside(plane, "one", "two")
    before = plane.one(Lease, name="tick").token
    monkeypatch.setattr(tick, "STARTS_PER_WRITE", 1)

    def slowly(*args, **kwargs):
        plane.engine.advance(plane.control.lease_ttl * 0.6)
        return place_all(*args, **kwargs)

    monkeypatch.setattr(tick, "place_all", slowly)
    report = plane.ticker.tick()
    assert not report.is_skipped
    assert report.started == 3  # and one of them grew
    assert [replica.index for replica in plane.all(Replica, job_id=job)] == [0, 1, 2]
    assert plane.one(WaitReason, shape=plane.one(Job, id="job-wide").shape).sentence
    assert plane.one(Lease, name="tick.done").expires_at == plane.engine.now
    lease = plane.one(Lease, name="tick")
    assert lease.token > before + 1  # it was renewed
    assert lease.expires_at == plane.engine.now


def test_a_gang_that_cannot_grow_keeps_no_other_back(plane, monkeypatch):
    job = grow_beside(plane, "one")
    monkeypatch.setattr(tick, "grow", lambda *_args, **_kwargs: 1 / 0)
    with structlog.testing.capture_logs() as logs:
        assert plane.ticker.tick().started == 1
    assert [(line["event"], line["job"]) for line in logs if line["log_level"] == "error"] == [("job.grow_failed", job)]
    assert len(plane.all(Replica, job_id=job)) == 2
    assert plane.one(WaitReason, shape=plane.one(Job, id="job-wide").shape).sentence


def test_a_tick_to_which_the_database_is_away_while_it_grows_a_gang_says_so(plane, monkeypatch):
    def away(*_args, **_kwargs):
        raise Unavailable("the database is away")

    grow_beside(plane)
    monkeypatch.setattr(tick, "grow", away)
    with pytest.raises(Unavailable):
        plane.ticker.tick()


def test_a_replica_that_leaves_while_another_returns_is_noticed(plane):
    plane.engine = FakeEngine(tuple(NodeInfo(f"node-{n}", {}, Amounts(2_000, 64 * 2**30)) for n in range(4)))
    plane.start()
    job = start(plane)
    attempt = AttemptId(plane.one(Attempt, job_id=job).id)
    # Those with the last ids stay: neither number, memory, generations nor newest id of what is held tell of the
    # others.
    goes, comes, *stay = sorted(plane.all(Replica), key=lambda replica: replica.id)
    assert len({one.node for one in (goes, comes, *stay)}) == 4
    kill(plane, job, goes.index)
    plane.settle()
    kill(plane, job, comes.index)
    plane.reconciler.reconcile(attempt)
    # This tick's look is the last one before both moves.
    assert plane.ticker.tick().started == 1
    kill(plane, job, goes.index, generation=2)
    plane.reconciler.reconcile(attempt)
    with unit_of_work(plane.sessions) as session:
        held = plane.ticker._cache.node_cache.holders(session)[attempt]
    assert sorted(one.node for one in held) == sorted(one.node for one in (comes, *stay))


def test_it_starts_with_what_there_is_place_for(plane):
    plane.submit("big", cpu=4)
    plane.settle()
    job = start(plane)
    assert world_of(plane, job) == ["worker-0", "worker-1"]
    plane.advance(11)
    assert world_of(plane, job) == ["worker-0", "worker-1", "worker-2", "worker-3"]
    assert plane.one(Attempt, job_id=job).number == 1


def test_a_refused_replica_is_retried_with_back_off_while_the_others_train(plane):
    job = start(plane)
    yes, no = Script(run_for=timedelta(hours=1)), Script(refuse="node node-0 has no more process ids")
    plane.engine.script("worker", no, no, no, yes, index=3)
    kill(plane, job, 3)
    plane.settle()
    generation = plane.one(Replica, job_id=job, index=3).generation
    for pause in (1, 2, 4, 8):
        plane.advance(pause)
    attempt = plane.one(Attempt, job_id=job)
    assert (attempt.state, attempt.number) == ("running", 1)
    assert world_of(plane, job) == ["worker-0", "worker-1", "worker-2", "worker-3"]
    reported = [event.reason for event in plane.all(Event, kind="replica.failed") if "process ids" in event.reason]
    assert len(reported) == 3
    last = plane.one(Replica, job_id=job, index=3)
    assert last.generation == 5
    assert generation < 5  # it was not tried again and again at once
    assert plane.engine.violations == []


@pytest.mark.parametrize(
    "fault", [InjectedFault.KILLED_BEFORE, InjectedFault.KILLED_AFTER, InjectedFault.BEFORE, InjectedFault.AFTER]
)
def test_world_updates_go_on_after_the_control_plane_dies_amid_them(plane, fault):
    job = start(plane)
    calls = []

    def faults(call: str, subject: str) -> InjectedFault:
        calls.append(call)
        return fault if call == "change_world" and calls.count(call) == 2 else InjectedFault.NONE

    plane.start(faults)
    kill(plane, job, 2)
    try:
        plane.settle()
    except ProcessKilled:
        pass
    assert calls.count("change_world") >= 2
    plane.start()
    plane.advance(20)  # leases of the dead end
    attempt = plane.one(Attempt, job_id=job)
    assert attempt.state == "running"
    assert len(world_of(plane, job)) == 4
    for replica in plane.all(Replica, job_id=job):
        order = plane.engine.order_of(key_of(plane, job, replica.index, replica.generation))
        assert order.world == attempt.world


def test_a_world_update_contains_no_token(plane):
    job = start(plane)
    kill(plane, job, 2)
    plane.settle()
    for replica in plane.all(Replica, job_id=job):
        order = plane.engine.order_of(key_of(plane, job, replica.index, replica.generation))
        assert order.token in order.env.values()  # it has one, for what speaks to the API by itself
        assert order.token not in json.dumps(world_fields(order))


def without(plane, table, **where) -> None:
    with unit_of_work(plane.sessions) as session:
        session.delete(session.query(table).filter_by(**where).one())


@pytest.mark.parametrize("gone", ["secret", "volume"])
def test_a_removed_secret_or_volume_stops_a_joining_replica_but_no_training_one(plane, gone):
    with unit_of_work(plane.sessions) as session:
        sealed = seal(KEY, "project-1", "API_KEY", "hunter2")
        session.add(Secret(project_id="project-1", name="API_KEY", ciphertext=sealed, updated_at=plane.engine.now))
        root = str(plane.folder / "more")
        session.add(Volume(id="volume-2", name="more", kind="local", root=root, created_at=plane.engine.now))
    (plane.folder / "more").mkdir()
    job = start(plane, secrets=["API_KEY"], mounts=[{"volume": "more", "at": "/data/more"}])
    if gone == "secret":
        without(plane, Secret, name="API_KEY")
    else:
        without(plane, Volume, name="more")
    kill(plane, job, 3)
    plane.settle()
    for pause in (1, 2, 4):
        plane.advance(pause)
    attempt = plane.one(Attempt, job_id=job)
    assert (attempt.state, attempt.number, attempt.world) == ("running", 1, 2)
    assert world_of(plane, job) == ["worker-0", "worker-1", "worker-2"]
    reported = plane.engine.order_of(key_of(plane, job, 0))
    assert (reported.world, reported.env["WORLD_SIZE"]) == (2, "3")
    failed = [event.reason for event in plane.all(Event, kind="replica.failed")]
    word = "API_KEY" if gone == "secret" else "volume more is not registered any more"
    assert any(word in reason for reason in failed), failed


def test_a_replica_that_the_engine_never_accepts_gives_its_place_back(plane):
    job = start(plane)
    plane.start(lambda call, _: InjectedFault.BEFORE if call == "create" else InjectedFault.NONE)
    kill(plane, job, 3)
    plane.settle()
    plane.advance(1)
    assert plane.one(Replica, job_id=job, index=3).state == "pending"
    plane.engine.advance(CREATE_PATIENCE)
    plane.reconciler.reconcile(AttemptId(plane.one(Attempt, job_id=job).id))
    given_up = plane.one(Replica, job_id=job, index=3)
    assert given_up.state == "failed"
    assert given_up.memory_bytes > 0  # something of it may still be under way
    plane.engine.advance(CREATE_CALL_TIMEOUT)
    plane.reconciler.reconcile(AttemptId(plane.one(Attempt, job_id=job).id))
    assert plane.one(Replica, job_id=job, index=3).memory_bytes == 0
    attempt = plane.one(Attempt, job_id=job)
    assert (attempt.state, attempt.number) == ("running", 1)
    reasons = [event.reason for event in plane.all(Event, kind="replica.failed")]
    assert any("worker-3 could not join for too long, and the others train on" in reason for reason in reasons), reasons


@pytest.mark.parametrize("fault", [InjectedFault.NONE, InjectedFault.BEFORE, InjectedFault.AFTER])
def test_a_replica_on_a_partitioned_node_is_stopped_when_the_node_is_back(plane, fault):
    """The engine shows it as running all the while: it trains in an old world, which the others have left."""
    nodes = tuple(NodeInfo(f"node-{n}", {}, Amounts(2_000, 64 * 2**30)) for n in range(4))
    plane.engine = FakeEngine(nodes)
    plane.start()
    job = start(plane)
    lost = next(r for r in plane.all(Replica, job_id=job) if r.index == 2)
    with unit_of_work(plane.sessions) as session:
        node = session.query(Node).filter_by(name=lost.node).one()
        node.is_ready, node.seen_at = False, plane.engine.now - timedelta(minutes=5)
    calls = []

    def faults(call: str, subject: str) -> InjectedFault:
        calls.append(call)
        return fault if call == "give_up" and calls.count(call) == 1 else InjectedFault.NONE

    plane.start_without_nodes(faults)
    attempt = AttemptId(plane.one(Attempt, job_id=job).id)
    for _ in range(4):
        plane.reconciler.reconcile(attempt)
        plane.engine.advance(timedelta(seconds=6))
    assert "worker-2" not in world_of(plane, job)
    assert key_of(plane, job, 2) not in plane.engine.live()
    assert len(plane.engine.live()) == 3


def measure(plane, job: str, speeds: dict[int, float], seconds: float = 60) -> None:
    """The job's own reports of its speed by replicas."""
    with unit_of_work(plane.sessions) as session:
        for replicas, per_s in speeds.items():
            steps = per_s * seconds
            add_measurement(session, job, replicas, steps=steps, seconds=seconds, now=plane.engine.now)
    plane.advance(20)  # the planner reads them now and then


def test_a_gang_that_more_replicas_made_no_faster_does_not_grow_again(plane):
    job = start(plane)
    measure(plane, job, {2: 10.0, 4: 10.1})
    kill(plane, job, 0)
    kill(plane, job, 1)
    plane.settle()
    plane.advance(60)
    assert world_of(plane, job) == ["worker-2", "worker-3"]
    assert len(plane.all(Replica, job_id=job, state="running")) == 2


def test_a_gang_that_got_faster_with_each_replica_grows_again(plane):
    job = start(plane)
    measure(plane, job, {2: 10.0, 4: 19.0})
    kill(plane, job, 0)
    kill(plane, job, 1)
    plane.settle()
    plane.advance(60)
    assert len(world_of(plane, job)) == 4


def test_a_gang_that_came_later_gets_replicas_of_the_first_one_after_a_while(plane):
    plane.engine.script("worker", Script(run_for=timedelta(hours=9)))
    early = plane.submit("early", workers={"min": 1, "max": 4}, cpu=2)
    plane.settle()
    late = plane.submit("late", workers={"min": 1, "max": 4}, cpu=2)
    plane.settle()
    plane.advance(5)  # a replica leaves for it, and it starts
    assert (len(world_of(plane, early)), len(world_of(plane, late))) == (3, 1)
    plane.advance(200)
    assert (len(world_of(plane, early)), len(world_of(plane, late))) == (3, 1)  # it was resized a moment ago
    plane.advance(110)
    plane.advance(5)
    sizes = len(world_of(plane, early)), len(world_of(plane, late))
    assert sizes in ((2, 2), (1, 3))
    event = plane.all(Event, kind="attempt.shrinking", job_id=early)[-1]
    assert event.reason == "Replicas make room for late, which they speed up more."
    assert event.data["for_job"] is None
    for _ in range(20):
        plane.advance(60)
    assert (len(world_of(plane, early)), len(world_of(plane, late))) == sizes
    assert len(plane.all(Attempt)) == 2  # nobody was started again


def test_the_next_job_of_the_name_starts_as_large_as_the_last_one_was_fast(plane):
    first = start(plane, name="train-1")
    measure(plane, first, {2: 10.0, 4: 10.1})
    plane.want(first, "cancel")
    plane.settle()
    plane.advance(60)
    second = start(plane, name="train-2")
    assert len(world_of(plane, second)) == 2
    other = start(plane, name="other")
    assert len(world_of(plane, other)) == 2  # half of the node is left
    measure(plane, second, {2: 10.0, 4: 20.0})
    plane.want(other, "cancel")
    plane.settle()
    plane.advance(60)
    assert len(world_of(plane, second)) == 4  # its own measurements outweigh the earlier job's


def test_a_job_has_a_bounded_number_of_measured_sizes_and_loses_them_when_deleted(plane):
    job = start(plane)
    measure(plane, job, dict.fromkeys(range(1, 100), 10.0))
    with unit_of_work(plane.sessions) as session:
        assert len(points_of(session, job)) == 64
    plane.want(job, "cancel")
    plane.settle()
    plane.advance(60)
    with unit_of_work(plane.sessions) as session:
        assert delete_of_deleted_jobs(session) == 0
        session.execute(update(Job).where(Job.id == job).values(deleted_at=plane.engine.now))
        assert delete_of_deleted_jobs(session) == 64


def test_what_a_replica_gave_back_counts_as_usage(plane):
    job = start(plane)
    begin = plane.engine.now
    plane.advance(600)
    kill(plane, job, 3)
    plane.settle()
    plane.advance(600)
    with unit_of_work(plane.control.sessions) as session:
        found = list(read_allocations(session, begin, plane.engine.now, plane.engine.now))
    mine = sorted((each for owner, each in found if owner.job_id == job), key=lambda each: (each.start, each.end))
    minutes = [((each.start - begin).total_seconds() // 60, (each.end - begin).total_seconds() // 60) for each in mine]
    assert minutes == [(0, 10), (0, 20), (0, 20), (0, 20), (10, 20)]
    assert {each.cpu_milli for each in mine} == {2000}
