"""The control loop over a real database and the fake engine, step by step."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update
from trainmaster.spec import parse_spec

from core import secrets
from core.db.engine import unit_of_work
from core.db.tables import (
    Attempt,
    Checkpoint,
    Event,
    IdempotencyKey,
    Job,
    Lease,
    Node,
    Project,
    Replica,
    Secret,
    User,
    Volume,
    WaitReason,
)
from core.domain.errors import ExecutorTryAgain, StaleWrite
from core.domain.exits import ExitCause
from core.domain.ids import AttemptId
from core.domain.resources import Amounts, gang_of
from core.tokens import verify_attempt_token
from executors.base import Gpu, NodeInfo, ReplicaKey
from executors.fake import FakeEngine, FakeExecutor, Fault, Script
from scheduler.control import sweep
from scheduler.control.context import Control
from scheduler.control.due import due_attempts
from scheduler.control.environment import EnvironmentNote
from scheduler.control.nodes import sync_nodes
from scheduler.control.reconcile import Reconciler, Verdict
from scheduler.control.sweep import (
    delete_outlived,
    expire_waiting,
    forget_events,
    forget_expired,
    sweep_executor,
)
from scheduler.control.tick import Ticker

GPUS = tuple(Gpu(str(number), "a100", 2**30) for number in range(2))
KEY = b"k" * 32


class Plane:
    """One control plane on an empty platform."""

    def __init__(self, sessions, folder: Path) -> None:
        self.sessions = sessions
        self.engine = FakeEngine((NodeInfo("node-0", {}, Amounts(8_000, 64 * 2**30, {"a100": 2}), GPUS),))
        self.rings: list[tuple[str, str]] = []
        self.folder = folder
        with unit_of_work(sessions) as session:
            now = self.engine.now
            session.add_all(
                [
                    Project(id="project-1", name="default", created_at=now, quota={}),
                    User(id="user-1", name="ann", is_admin=False, created_at=now),
                    Volume(id="volume-1", name="output", kind="local", root=str(folder), created_at=now),
                ]
            )
        self.start()

    def start(self, faults=None) -> None:
        """Begin again with an empty memory, as after a kill."""
        executor = FakeExecutor(self.engine, *([faults] if faults else []))
        self.control = Control(
            self.sessions, executor, self, lambda: self.engine.now, "test", KEY, "http://api", self.folder
        )
        self.ticker, self.reconciler = Ticker(self.control), Reconciler(self.control)
        sync_nodes(self.control)

    def ring(self, topic: str, key: str = "") -> None:
        self.rings.append((topic, key))

    def submit(self, name: str = "job", **spec) -> str:
        whole = parse_spec({"name": name, "command": "train", "workers": 1, **spec})
        gang = gang_of(whole)
        now = self.engine.now
        with unit_of_work(self.sessions) as session:
            session.add(
                Job(
                    id=f"job-{name}", project_id="project-1", user_id="user-1", name=name,
                    spec=whole.model_dump(mode="json"), gang=gang.to_json(), shape=gang.shape(), state="queued",
                    priority=whole.priority, max_run_time_s=whole.max_run_time, output_volume="output",
                    output_path=f"default/{name}", created_at=now, queued_at=now, updated_at=now,
                )
            )  # fmt: skip
        return f"job-{name}"

    def settle(self) -> None:
        """Tick and reconcile until nothing moves any more."""
        for _ in range(10):
            self.ticker.tick()
            self.rings.clear()
            with unit_of_work(self.sessions) as session:
                live = list(session.scalars(select(Attempt.id).where(Attempt.ended_at.is_(None))))
            for attempt_id in live:
                self.reconciler.reconcile(AttemptId(attempt_id))
            if not self.rings:
                return

    def advance(self, seconds: float) -> None:
        self.engine.advance(timedelta(seconds=seconds))
        self.settle()

    def one(self, table, **where):
        with unit_of_work(self.sessions) as session:
            return session.scalars(select(table).filter_by(**where)).one()

    def all(self, table, **where):
        with unit_of_work(self.sessions) as session:
            return list(session.scalars(select(table).filter_by(**where)))

    def state(self, job_id: str) -> str:
        return self.one(Job, id=job_id).state

    def story(self, job_id: str) -> list[str]:
        with unit_of_work(self.sessions) as session:
            return list(session.scalars(select(Event.kind).where(Event.job_id == job_id).order_by(Event.id)))

    def want(self, job_id: str, wanted: str) -> None:
        with unit_of_work(self.sessions) as session:
            session.execute(update(Job).where(Job.id == job_id).values(wanted=wanted, generation=Job.generation + 1))


@pytest.fixture
def plane(sessions, tmp_path):
    return Plane(sessions, tmp_path)


def test_the_history_of_an_ordinary_job_reads_like_a_story(plane):
    job = plane.submit(workers=2)
    plane.settle()
    plane.advance(11)
    assert plane.state(job) == "succeeded"
    assert plane.story(job) == [
        "job.placed",
        "attempt.starting",
        "replica.starting",
        "replica.running",
        "job.running",
        "replica.succeeded",
        "job.succeeded",
    ]
    attempt = plane.one(Attempt, job_id=job)
    assert attempt.end["sentence"] == "All 2 workers finished."
    assert attempt.started_at is not None
    assert not plane.engine.attempts()


def test_gpus_are_given_to_one_replica_each_and_back_at_the_end(plane):
    job = plane.submit(workers=2, gpus=1)
    other = plane.submit("other", gpus=1)
    plane.settle()
    assert sorted(gpu for replica in plane.all(Replica, job_id=job) for gpu in replica.gpus) == ["0", "1"]
    waiting = plane.one(Job, id=other)
    assert waiting.state == "queued"
    assert plane.one(WaitReason, shape=waiting.shape).code == "no_room"
    plane.advance(11)
    assert plane.state(other) == "running"
    assert not plane.all(WaitReason)


def test_the_order_carries_contracts_mounts_secrets_and_a_token_of_its_own(plane):
    (plane.folder / "sets" / "digits").mkdir(parents=True)
    with unit_of_work(plane.sessions) as session:
        session.add(
            Secret(
                project_id="project-1", name="API_KEY", sealed=secrets.seal(KEY, "project-1", "API_KEY", "hush"),
                updated_at=plane.engine.now,
            )
        )  # fmt: skip
    job = plane.submit(
        workers=2, input="output/sets/digits", env={"EPOCHS": "3"}, secrets=["API_KEY"], max_run_time="1h",
        mounts=[{"volume": "output", "path": "sets", "at": "/mnt/sets"}],
        cpu="2", memory="1Gi",
    )  # fmt: skip
    plane.settle()
    attempt = plane.one(Attempt, job_id=job)
    order = plane.engine.order_of(ReplicaKey(job, attempt.id, "worker", 1))
    assert order.env["EPOCHS"] == "3"
    assert order.env["API_KEY"] == "hush"
    assert order.env["RANK"] == "1"
    assert order.env["MASTER_PORT"] == str(attempt.layout[0]["ports"][1])
    assert {(m.target, m.source, m.read_only) for m in order.mounts} == {
        ("/data/data", str(plane.folder / "sets/digits"), True),
        ("/data/output", str(plane.folder / "default/job"), False),
        ("/mnt/sets", str(plane.folder / "sets"), True),
    }
    assert order.deadline_s == 3600
    assert (order.cpu_limit_milli, order.memory_limit_bytes) == (2000, 2**30)
    assert verify_attempt_token(KEY, order.token) == attempt.id
    assert "hush" not in str(plane.all(Event, job_id=job))
    assert (plane.folder / "default/job").is_dir()


def test_clashes_of_all_replicas_are_told_once_per_attempt(plane):
    # Rank 0 agrees with the platform, rank 1 does not.
    env = {"LR": "1", "OMP_NUM_THREADS": "2", "RANK": "0", "TF_CONFIG": "{}"}
    sealed = secrets.seal(KEY, "project-1", "MASTER_ADDR", "here")
    with unit_of_work(plane.sessions) as session:
        session.add(Secret(project_id="project-1", name="MASTER_ADDR", sealed=sealed, updated_at=plane.engine.now))
    job = plane.submit(workers=2, env=env, secrets=["MASTER_ADDR"])
    plane.engine.script("worker", Script(run_for=None))
    plane.settle()
    plane.start()  # another process reconciles the same attempt
    plane.settle()
    (told,) = plane.all(Event, job_id=job, kind="attempt.environment")
    assert told.reason == "The job's own MASTER_ADDR, RANK and TF_CONFIG are used instead of the platform's."
    assert (told.actor, told.attempt_id) == ("scheduler", plane.one(Attempt).id)
    assert told.data == {"clashes": ["MASTER_ADDR", "RANK", "TF_CONFIG"], "omitted": []}


def test_what_is_too_large_for_linux_is_told_with_what_to_read_instead():
    one = EnvironmentNote((), ("TF_CONFIG",))
    assert one.sentence == "TF_CONFIG is too large for Linux and is left out; read TRAINMASTER_LAYOUT instead."
    assert EnvironmentNote((), ("TF_CONFIG", "TRAINMASTER_LAYOUT")).sentence.startswith("TF_CONFIG and TRAINMASTER_LA")
    assert not EnvironmentNote((), ())


def test_a_dead_worker_restarts_the_gang_at_once_from_the_newest_checkpoint(plane):
    plane.engine.script(
        "worker",
        Script(run_for=timedelta(seconds=5), exit_code=137, cause=ExitCause.SIGNALLED, log_tail="step 7\n"),
        Script(run_for=None),
        index=0,
    )
    plane.engine.script("worker", Script(run_for=None), index=1)
    job = plane.submit(workers=2)
    plane.settle()
    for step in (5, 7):
        done = plane.folder / f"default/job/checkpoints/step-{step}"
        done.mkdir(parents=True)
        (done / ".complete").touch()
    plane.advance(6)
    first, second = plane.all(Attempt, job_id=job)
    assert (first.state, first.is_counted, first.end["role"], first.end["index"]) == ("ended", True, "worker", 0)
    assert second.resume_from == "/data/output/checkpoints/step-7"
    assert plane.state(job) == "running"
    assert plane.one(Job, id=job).restart_count == 1
    failed = plane.one(Replica, attempt_id=first.id, role="worker", index=0)
    assert failed.exit["log_tail"] == "step 7\n"
    order = plane.engine.order_of(ReplicaKey(job, second.id, "worker", 0))
    assert order.env["TRAINMASTER_RESUME_FROM"] == second.resume_from


def test_a_checkpoint_that_the_job_told_of_and_deleted_is_not_resumed_from(plane):
    plane.engine.script("worker", Script(run_for=timedelta(seconds=5), exit_code=137), Script(run_for=None))
    job = plane.submit()
    plane.settle()
    attempt = plane.one(Attempt, job_id=job)
    kept = plane.folder / "default/job/models/step-3"
    kept.mkdir(parents=True)
    with unit_of_work(plane.sessions) as session:
        for step, path in ((3, "models/step-3"), (9, "models/step-9")):
            session.add(
                Checkpoint(
                    id=f"c{step}", job_id=job, attempt_id=attempt.id, path=path, step=step, metrics={},
                    created_at=plane.engine.now,
                )
            )  # fmt: skip
    plane.advance(6)
    assert plane.all(Attempt, job_id=job)[1].resume_from == "/data/output/models/step-3"


def test_quick_failures_wait_with_a_reason_and_a_time(plane):
    plane.engine.script("worker", Script(run_for=timedelta(seconds=1), exit_code=137, cause=ExitCause.SIGNALLED))
    job = plane.submit(max_restarts=5)
    plane.settle()
    plane.advance(2)
    plane.advance(2)
    row = plane.one(Job, id=job)
    assert row.state == "queued"
    assert row.wait_reason["code"] == "backoff"
    assert row.not_before - plane.engine.now == timedelta(seconds=1)
    assert plane.ticker.tick().next_look == row.not_before
    plane.advance(1)
    row = plane.one(Job, id=job)
    assert (row.state, row.wait_reason) == ("running", None)


def test_an_engine_that_is_away_is_told_in_the_replicas_and_tried_again(plane):
    class Away:
        def __init__(self):
            self.is_on = True

        def __call__(self, call, subject):
            return Fault.BEFORE if self.is_on and call == "create" else Fault.NONE

    away = Away()
    plane.start(away)
    job = plane.submit()
    plane.settle()
    assert plane.one(Replica, job_id=job).detail == "The engine did not answer; try again."
    assert plane.state(job) == "starting"
    away.is_on = False
    plane.advance(1)
    assert plane.state(job) == "running"
    assert plane.one(Replica, job_id=job).detail == ""


def test_what_the_engine_refuses_fails_the_job_with_its_sentence(plane):
    plane.engine.script("worker", Script(refuse="There is no image nope:latest; push it first."))
    job = plane.submit(workers=2)
    plane.settle()
    row = plane.one(Job, id=job)
    assert (row.state, row.exit["sentence"]) == ("failed", "There is no image nope:latest; push it first.")
    assert not plane.engine.live()


def test_a_missing_secret_fails_the_job_before_anything_starts(plane):
    job = plane.submit(secrets=["GONE"])
    plane.settle()
    assert plane.state(job) == "failed"
    assert "no secret GONE" in plane.one(Job, id=job).exit["sentence"]
    assert not plane.engine.starts


def test_a_link_to_another_project_put_in_the_way_later_fails_the_job(plane):
    theirs = plane.folder / "others" / "job-1"
    theirs.mkdir(parents=True)
    (plane.folder / "default").mkdir()
    (plane.folder / "default" / "set").symlink_to("../others/job-1")
    (plane.folder / "default" / "b").symlink_to("../others")
    reader, writer = plane.submit("a", input="output/default/set"), plane.submit("b")
    plane.settle()
    assert (plane.state(reader), plane.state(writer)) == ("failed", "failed")
    assert plane.one(Job, id=reader).exit["sentence"].startswith("input: ")
    assert plane.one(Job, id=writer).exit["sentence"].startswith("output: ")
    assert list(theirs.iterdir()) == []


def test_cancel_and_pause_reach_what_runs(plane):
    plane.engine.script("worker", Script(run_for=None))
    cancelled, paused = plane.submit("cancelled"), plane.submit("paused")
    plane.settle()
    plane.want(cancelled, "cancel")
    plane.want(paused, "pause")
    plane.settle()
    assert (plane.state(cancelled), plane.state(paused)) == ("cancelled", "paused")
    assert not plane.engine.live()


def test_a_wish_of_the_moment_between_two_states_is_not_forgotten(plane):
    job = plane.submit()
    plane.want(job, "cancel")
    plane.settle()
    assert plane.state(job) == "cancelled"
    assert not plane.engine.starts


def test_a_lost_node_gives_its_jobs_to_others_after_its_grace_without_counting(plane):
    plane.engine.script("worker", Script(run_for=None))
    job = plane.submit()
    plane.settle()
    sync_nodes(plane.control)
    plane.engine._nodes["node-1"] = NodeInfo("node-1", {}, Amounts(8_000, 64 * 2**30))
    node = plane.engine._nodes["node-0"]
    plane.engine._nodes["node-0"] = NodeInfo(
        "node-0", {}, node.allocatable, GPUS, is_ready=False, condition="No answer."
    )
    sync_nodes(plane.control)
    plane.advance(59)
    assert plane.one(Attempt, job_id=job).number == 1
    plane.advance(2)
    first, second = plane.all(Attempt, job_id=job)
    assert first.end["kind"] == "platform"
    assert not first.is_counted
    assert plane.one(Replica, attempt_id=second.id).node == "node-1"


def test_nodes_come_and_go_and_a_cordon_stays(plane):
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Node).values(is_cordoned=True, cordon_reason="repair"))
    assert sync_nodes(plane.control) == 0
    job = plane.submit()
    plane.settle()
    assert plane.state(job) == "queued"
    plane.engine._nodes.clear()
    assert sync_nodes(plane.control) == 1
    node = plane.one(Node)
    assert (node.is_ready, node.is_cordoned, node.cordon_reason) == (False, True, "repair")


def test_an_admins_label_outlives_the_looks_at_nodes_and_lets_a_selector_match(plane):
    job = plane.submit(node_selector={"pool": "fast"})
    plane.settle()
    assert plane.state(job) == "queued"
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Node).values(admin_labels={"pool": "fast"}))
    node = plane.engine._nodes["node-0"]
    plane.engine._nodes["node-0"] = NodeInfo("node-0", {"pool": "slow"}, node.allocatable, GPUS)
    assert sync_nodes(plane.control) == 1
    assert plane.one(Node).admin_labels == {"pool": "fast"}
    plane.settle()
    assert plane.state(job) == "running"


def test_a_family_gets_the_ids_of_the_model_that_was_chosen(plane):
    gpus = (Gpu("0", "Tesla T4", 2**30), Gpu("7", "NVIDIA A100-SXM4-80GB", 2**30))
    whole = Amounts(8_000, 64 * 2**30, {"Tesla T4": 1, "NVIDIA A100-SXM4-80GB": 1})
    plane.engine._nodes["node-0"] = NodeInfo("node-0", {}, whole, gpus)
    sync_nodes(plane.control)
    assert plane.one(Node).allocatable["gpus"] == {"t4": 1, "a100-sxm4-80gb": 1}
    job = plane.submit(gpus=1, gpu_type="A100")
    plane.settle()
    replica = plane.one(Replica, job_id=job)
    assert (replica.gpus, replica.gpu_model) == (["7"], "a100-sxm4-80gb")


def test_a_killed_control_plane_is_followed_by_one_that_adopts(plane):
    plane.engine.script("worker", Script(run_for=timedelta(seconds=5)))
    job = plane.submit()
    plane.settle()
    plane.start()
    plane.advance(6)
    assert plane.state(job) == "succeeded"
    assert len(plane.engine.starts) == 1


def test_another_processs_attempt_is_left_alone(plane):
    job = plane.submit()
    plane.ticker.tick()
    attempt = AttemptId(plane.one(Attempt, job_id=job).id)
    with unit_of_work(plane.sessions) as session:
        expires = plane.engine.now + timedelta(seconds=15)
        session.add(Lease(name=f"attempt:{attempt}", holder="other", token=7, expires_at=expires))
    assert plane.reconciler.reconcile(attempt).verdict is Verdict.BUSY
    assert not plane.engine.starts


def test_beat_rings_for_what_was_forgotten(plane):
    plane.engine.script("worker", Script(run_for=None))
    job = plane.submit()
    plane.ticker.tick()
    attempt = plane.one(Attempt, job_id=job).id

    def due():
        with unit_of_work(plane.sessions) as session:
            return due_attempts(session, plane.engine.now)

    assert due() == [attempt]
    plane.settle()
    assert due() == []
    plane.engine.advance(timedelta(seconds=6))
    assert due() == [attempt]


def test_beat_leaves_what_runs_well_alone_for_longer_where_the_executor_tells_of_changes(plane):
    plane.engine.script("worker", Script(run_for=None))
    job = plane.submit()
    plane.settle()
    attempt = plane.one(Attempt, job_id=job).id

    def due_after(seconds):
        with unit_of_work(plane.sessions, read_only=True) as session:
            now = plane.engine.now + timedelta(seconds=seconds)
            return due_attempts(session, now, steady=timedelta(minutes=5))

    assert due_after(60) == []
    assert due_after(301) == [attempt]
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Node).values(is_ready=False))
    assert due_after(60) == [attempt], "its node will count as lost by time alone"


def test_a_ready_node_with_a_condition_takes_no_new_work_and_keeps_what_runs(plane):
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Node).values(condition="It is cordoned in the cluster."))
    job = plane.submit()
    plane.ticker.tick()
    with unit_of_work(plane.sessions, read_only=True) as session:
        assert session.get(Job, job).state == "queued"
        reasons = session.scalars(select(WaitReason.sentence)).all()
    assert "take no new work" in reasons[0]
    assert "takes no new work (It is cordoned in the cluster)" in reasons[0]


def test_the_sweep_removes_what_nobody_knows_and_nothing_else(plane):
    plane.engine.script("worker", Script(run_for=None))
    job = plane.submit()
    plane.settle()
    order = plane.engine.order_of(ReplicaKey(job, plane.one(Attempt).id, "worker", 0))
    from dataclasses import replace

    plane.engine.create(replace(order, key=replace(order.key, attempt_id=AttemptId("att-unknown"), job_id="other")))
    assert sweep_executor(plane.control) == 1
    assert plane.engine.attempts() == {plane.one(Attempt).id}


def test_a_job_that_waited_too_long_expires_and_its_neighbour_does_not(plane):
    short, long = plane.submit("short", gpus=2, max_wait="30s"), plane.submit("long", gpus=2, max_wait="1h")
    plane.submit("holder", gpus=2, priority=100)
    plane.engine.script("worker", Script(run_for=None))
    plane.settle()
    plane.engine.advance(timedelta(seconds=31))
    assert expire_waiting(plane.control) == 1
    assert (plane.state(short), plane.state(long)) == ("expired", "queued")
    assert "max_wait (30 s)" in plane.one(Job, id=short).exit["sentence"]


def test_a_job_outlived_by_its_ttl_is_deleted_and_old_keys_are_forgotten(plane):
    job = plane.submit(ttl="60s")
    plane.settle()
    plane.advance(11)
    assert delete_outlived(plane.control) == 0
    with unit_of_work(plane.sessions) as session:
        session.add(
            IdempotencyKey(user_id="user-1", key="k", request_digest="d", job_id=job, created_at=plane.engine.now)
        )
    plane.engine.advance(timedelta(days=2))
    assert delete_outlived(plane.control) == 1
    assert plane.one(Job, id=job).deleted_at is not None
    forget_expired(plane.control)
    assert not plane.all(IdempotencyKey)
    assert not [lease for lease in plane.all(Lease) if lease.name.startswith("attempt:")]


def test_a_long_ttl_never_stands_in_the_way_of_a_short_one(plane, monkeypatch):
    monkeypatch.setattr(sweep, "_BATCH", 2)
    long = [plane.submit(f"a-{number}", ttl="30d") for number in range(5)]
    plane.settle()
    plane.advance(11)
    short = [plane.submit(f"b-{number}", ttl="60s") for number in range(3)]
    plane.settle()
    plane.advance(11)
    plane.engine.advance(timedelta(hours=1))
    assert delete_outlived(plane.control) == 3
    assert all(plane.one(Job, id=job).deleted_at is not None for job in short)
    assert all(plane.one(Job, id=job).deleted_at is None for job in long)
    assert delete_outlived(plane.control) == 0
    assert plane.story(short[0]).count("job.deleted") == 1


def test_events_of_deleted_jobs_go_after_their_retention_and_others_never(plane, monkeypatch):
    monkeypatch.setattr(sweep, "_EVENT_BATCH", 3)
    deleted, kept = plane.submit("deleted", ttl="60s"), plane.submit("kept")
    plane.settle()
    plane.advance(11)
    plane.engine.advance(timedelta(days=89))
    delete_outlived(plane.control)
    story, others = plane.story(deleted), plane.story(kept)
    assert forget_events(plane.control, timedelta(days=90)) == 0
    plane.engine.advance(timedelta(days=2))
    live = plane.submit("live")
    plane.engine.script("worker", Script(run_for=None))
    plane.settle()
    plane.engine.advance(timedelta(days=1000))
    assert forget_events(plane.control, timedelta(days=90)) == len(story) > 3
    assert plane.story(deleted) == []
    assert plane.story(kept) == others
    assert "job.running" in plane.story(live)


def test_reasons_of_shapes_that_nobody_waits_with_are_forgotten(plane):
    job = plane.submit(gpus=64)
    plane.settle()
    assert plane.all(WaitReason)
    plane.want(job, "cancel")
    plane.advance(11)
    assert not plane.all(WaitReason)


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
    monkeypatch.setattr("scheduler.control.tick.plan", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        plane.ticker.tick()
    assert plane.one(Lease, name="tick.done").expires_at == done_at
    assert plane.one(Lease, name="tick").expires_at > plane.engine.now


def test_two_gangs_never_get_the_same_port(plane):
    plane.engine.script("worker", Script(run_for=None))
    jobs = [plane.submit(f"j{number}", workers=2) for number in range(4)]
    plane.engine._next_port = 59_990
    plane.settle()
    layouts = [plane.one(Attempt, job_id=job).layout for job in jobs]
    ports = [port for layout in layouts for replica in layout for port in replica["ports"]]
    assert len(ports) == len(set(ports)) == 32


def test_an_engine_that_is_away_says_nothing_about_its_nodes(plane):
    plane.start()
    executor = FakeExecutor(plane.engine, lambda call, _: Fault.BEFORE if call == "nodes" else Fault.NONE)
    from dataclasses import replace

    with pytest.raises(ExecutorTryAgain):
        sync_nodes(replace(plane.control, executor=executor))
    assert plane.one(Node).is_ready


def late_creation_of(index):
    """Creating this worker is answered with an error, and happens five seconds later."""
    return lambda call, subject: Fault.LATE if call == "create" and f"index={index}" in subject else Fault.NONE


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


def test_a_stale_process_writes_nothing(plane):
    from scheduler.control import fence

    lease = fence.acquire(plane.control, "attempt:att-1")
    plane.engine.advance(timedelta(seconds=16))
    from dataclasses import replace

    other = replace(plane.control, holder="other")
    assert fence.acquire(other, "attempt:att-1") is not None
    with pytest.raises(StaleWrite), fence.fenced(plane.control, lease):
        raise AssertionError("the fence let it in")
    with pytest.raises(StaleWrite):
        fence.renew(plane.control, lease)
