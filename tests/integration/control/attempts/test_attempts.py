"""Attempts from their start to their end, over a real database and the fake engine."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update
from structlog.testing import capture_logs

from core import secrets
from core.db.engine import unit_of_work
from core.db.tables import (
    Attempt,
    Checkpoint,
    Event,
    Job,
    Replica,
    Secret,
    Volume,
    VolumeGrant,
    WaitReason,
)
from core.domain.errors import ExecutorTryAgain, IllegalTransition, StaleWrite
from core.domain.jobs.exits import ExitCause
from core.tokens import verify_attempt_token
from executors.base import ReplicaKey
from executors.fake import InjectedFault, Script
from scheduler.control.attempts.launching.environment import EnvironmentNote
from scheduler.control.attempts.storage import attempt_writer
from scheduler.control.maintenance.gc import gc_executor
from scheduler.control.maintenance.nodes import sync_nodes

KEY = b"k" * 32


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


def test_an_illegal_move_is_raised_with_what_the_job_went_through(plane, monkeypatch):
    plane.submit()
    plane.ticker.tick()

    def refuse(_state, _event):
        raise IllegalTransition("It is no move in its table.")

    monkeypatch.setattr(attempt_writer, "advance", refuse)
    with pytest.raises(IllegalTransition) as refused:
        plane.reconciler.reconcile(plane.one(Attempt).id)
    assert [line["kind"] for line in refused.value.history] == ["job.placed"]
    monkeypatch.undo()
    plane.settle()
    assert plane.reconciler.reconcile(plane.one(Attempt).id).fingerprint, "the attempt is nobody's because of it"


@pytest.fixture
def hanging(plane):
    """Attempt -> what the engine cannot end of it."""
    left = {}
    # Of this one alone: that the class has them Python would remember for all that come later.
    plane.control.executor.unkilled_replicas = lambda name: left.get(name, ())
    plane.control.executor.forget_unkilled_replicas = lambda name: left.pop(name, None)
    return left


@pytest.mark.parametrize("failures", [0, 1], ids=["at once", "after a write that failed"])
def test_unkilled_replicas_are_in_the_history_of_the_job(plane, hanging, monkeypatch, failures):
    job = plane.submit()
    plane.settle()
    name = plane.one(Attempt).id
    hanging[name] = ["It hangs."]
    real, failed = attempt_writer.AttemptWriter.end, []

    def end(*args):
        wakeups = real(*args)
        if len(failed) < failures:
            failed.append(1)
            raise StaleWrite("somebody moved it")
        return wakeups

    monkeypatch.setattr(attempt_writer.AttemptWriter, "end", end)
    plane.advance(11)
    assert plane.state(job) == "succeeded"
    assert len(failed) == failures
    assert plane.one(Event, kind="replica.abandoned").reason == "It hangs."
    assert not hanging


def test_what_hangs_of_an_attempt_that_is_swept_is_forgotten(plane, hanging):
    plane.engine.script("worker", Script(run_for=None))
    plane.submit()
    plane.settle()
    attempt = plane.one(Attempt)
    hanging[attempt.id] = ["It hangs."]
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Attempt).values(ended_at=attempt.created_at))
    assert gc_executor(plane.control) == 1
    assert not hanging


def test_gpus_are_given_to_one_replica_each_and_back_at_the_end(plane):
    job = plane.submit(workers=2, gpus=1)
    plane.settle()
    other = plane.submit("other", gpus=1)
    plane.settle()
    assert sorted(gpu for replica in plane.all(Replica, job_id=job) for gpu in replica.gpus) == ["0", "1"]
    waiting = plane.one(Job, id=other)
    assert waiting.state == "queued"
    assert plane.one(WaitReason, shape=waiting.shape).code == "no_room"
    plane.advance(11)
    assert plane.state(other) == "running"
    assert not plane.all(WaitReason)


def test_a_gpu_that_is_held_by_its_number_of_old_is_not_given_out_again(plane):
    plane.engine.script("worker", Script(run_for=None))
    old = plane.submit("old", gpus=1)
    plane.settle()
    held = plane.one(Replica, job_id=old).gpus  # by its index, from before an upgrade
    node = plane.engine._nodes["node-0"]
    by_uuid = tuple(replace(gpu, id=f"GPU-{gpu.id}", formerly=(gpu.id,)) for gpu in node.gpus)
    plane.engine._nodes["node-0"] = replace(node, gpus=by_uuid)
    sync_nodes(plane.control)
    new = plane.submit("new", gpus=1)
    plane.settle()
    given = plane.one(Replica, job_id=new).gpus
    assert [gpu.formerly[0] for gpu in by_uuid if gpu.id in given] != held
    assert given[0].startswith("GPU-")


def test_the_order_carries_contracts_mounts_secrets_and_a_token_of_its_own(plane):
    (plane.folder / "sets" / "digits").mkdir(parents=True)
    with unit_of_work(plane.sessions) as session:
        session.add(
            Secret(
                project_id="project-1", name="API_KEY", ciphertext=secrets.seal(KEY, "project-1", "API_KEY", "hush"),
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
    assert all(m.inode == Path(m.source).stat().st_ino for m in order.mounts)
    assert order.deadline_s == 3600
    assert (order.cpu_limit_milli, order.memory_limit_bytes) == (2000, 2**30)
    assert verify_attempt_token(KEY, order.token) == attempt.id
    assert "hush" not in str(plane.all(Event, job_id=job))
    assert (plane.folder / "default/job").is_dir()


def test_clashes_of_all_replicas_are_one_event_per_attempt(plane):
    # Rank 0 agrees with the platform, rank 1 does not.
    env = {"LR": "1", "OMP_NUM_THREADS": "2", "RANK": "0", "TF_CONFIG": "{}"}
    sealed = secrets.seal(KEY, "project-1", "MASTER_ADDR", "here")
    with unit_of_work(plane.sessions) as session:
        session.add(Secret(project_id="project-1", name="MASTER_ADDR", ciphertext=sealed, updated_at=plane.engine.now))
    job = plane.submit(workers=2, env=env, secrets=["MASTER_ADDR"])
    plane.engine.script("worker", Script(run_for=None))
    plane.settle()
    plane.start()  # another process reconciles the same attempt
    plane.settle()
    (reported,) = plane.all(Event, job_id=job, kind="attempt.environment")
    assert reported.reason == "The job's own MASTER_ADDR, RANK and TF_CONFIG are used instead of the platform's."
    assert (reported.actor, reported.attempt_id) == ("scheduler", plane.one(Attempt).id)
    assert reported.data == {"clashes": ["MASTER_ADDR", "RANK", "TF_CONFIG"], "omitted": []}


def test_an_event_says_what_to_read_instead_of_a_variable_too_large_for_linux():
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
    assert (first.state, first.counts_as_restart, first.end["role"], first.end["index"]) == ("ended", True, "worker", 0)
    assert second.resume_from == "/data/output/checkpoints/step-7"
    assert plane.state(job) == "running"
    assert plane.one(Job, id=job).restart_count == 1
    failed = plane.one(Replica, attempt_id=first.id, role="worker", index=0)
    assert failed.exit["log_tail"] == "step 7\n"
    order = plane.engine.order_of(ReplicaKey(job, second.id, "worker", 0))
    assert order.env["TRAINMASTER_RESUME_FROM"] == second.resume_from


def test_a_reported_checkpoint_that_was_deleted_is_not_resumed_from(plane):
    plane.engine.script("worker", Script(run_for=timedelta(seconds=5), exit_code=137), Script(run_for=None))
    job = plane.submit()
    plane.settle()
    attempt = plane.one(Attempt, job_id=job)
    remaining = plane.folder / "default/job/models/step-3"
    remaining.mkdir(parents=True)
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
    assert plane.ticker.tick().recheck_at == row.not_before
    plane.advance(1)
    row = plane.one(Job, id=job)
    assert (row.state, row.wait_reason) == ("running", None)


def test_an_engine_that_is_away_is_in_the_replicas_details_and_tried_again(plane):
    class Away:
        def __init__(self):
            self.is_on = True

        def __call__(self, call, subject):
            return InjectedFault.BEFORE if self.is_on and call == "create" else InjectedFault.NONE

    away = Away()
    plane.start(away)
    job = plane.submit()
    plane.settle()
    assert plane.one(Replica, job_id=job).detail == "The engine did not answer; try again."
    assert plane.state(job) == "starting"
    for _ in range(8):
        plane.advance(1)
    # Whoever looks at the job learns it there, and the history tells it once.
    reported = "worker-0: The engine did not answer; try again."
    assert plane.one(Job, id=job).wait_reason["sentence"] == reported
    assert plane.story(job).count("attempt.waiting") == 1
    assert plane.one(Event, kind="attempt.waiting").reason == reported
    away.is_on = False
    for _ in range(8):
        plane.advance(1)
    assert plane.state(job) == "running"
    assert plane.one(Replica, job_id=job).detail == ""


def test_an_engine_that_says_when_it_will_be_ready_is_requested_again_then(plane, monkeypatch):
    def remove(attempt_id):
        raise ExecutorTryAgain("It still sends its last reports.", retry_after_s=2.0)

    plane.start()
    job = plane.submit()
    plane.settle()
    monkeypatch.setattr(plane.control.executor, "remove", remove)
    with capture_logs() as logs:
        plane.advance(11)
        for _ in range(8):
            plane.advance(2)
    waits = [line["again_in_s"] for line in logs if line["event"] == "executor.away"]
    assert len(waits) >= 8
    assert set(waits) == {2.0}  # and not longer each time
    monkeypatch.undo()
    plane.advance(2)
    assert plane.state(job) == "succeeded"


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


def test_a_link_out_of_a_granted_folder_put_in_the_way_later_fails_the_job(plane):
    root = plane.folder / "sets"
    (root / "ours").mkdir(parents=True)
    (root / "theirs").mkdir()
    (root / "ours" / "out").symlink_to("../theirs")
    (root / "ours" / "in").symlink_to(".")
    with unit_of_work(plane.sessions) as session:
        session.add(Volume(id="volume-sets", name="sets", kind="local", root=str(root), created_at=plane.engine.now))
        session.flush()
        session.add(VolumeGrant(id="grant-sets", volume_id="volume-sets", prefix="ours", access="write"))
    reader, writer = plane.submit("a", input="sets/ours/out"), plane.submit("b")
    inside = plane.submit("c", input="sets/ours/in")
    with unit_of_work(plane.sessions) as session:
        job = session.get_one(Job, writer)
        job.output_volume, job.output_path = "sets", "ours/out/b"
    plane.settle()
    assert (plane.state(reader), plane.state(writer), plane.state(inside)) == ("failed", "failed", "running")
    assert plane.one(Job, id=reader).exit["sentence"].startswith("input: ")
    assert plane.one(Job, id=writer).exit["sentence"].startswith("output: ")
    assert list((root / "theirs").iterdir()) == []
