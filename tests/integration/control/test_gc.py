"""What is cleared away, and what never is."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import delete, select, update

from core.db.bootstrap import ensure_database_id
from core.db.engine import unit_of_work
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.tables import (
    Attempt,
    DatabaseIdentity,
    Event,
    IdempotencyKey,
    Job,
    Lease,
    LoginCode,
    MetricStream,
    MlflowModel,
    MlflowRun,
    Orphan,
    Replica,
    TensorBoardLink,
    Token,
    WaitReason,
)
from core.domain.ids import AttemptId
from core.domain.metrics import Points
from executors.base import ReplicaKey
from executors.fake import Script
from scheduler.control.maintenance import gc
from scheduler.control.maintenance.gc import (
    ORPHAN_GRACE,
    gc_events,
    gc_executor,
    gc_expired,
    gc_jobs,
    gc_metrics,
    gc_runs,
)
from scheduler.control.maintenance.nodes import sync_nodes
from scheduler.control.transitions import expire_waiting


def put_orphan(plane, job: str, *, database_id: str) -> AttemptId:
    """An attempt on the engine that no database row knows."""
    order = plane.engine.order_of(ReplicaKey(job, plane.one(Attempt).id, "worker", 0))
    orphan = AttemptId(f"att-of-{database_id or 'nobody'}")
    key = replace(order.key, attempt_id=orphan, job_id="other")
    plane.engine.create(replace(order, key=key, database_id=database_id))
    return orphan


@pytest.mark.parametrize("is_reported", [True, False], ids=["its own", "without a database"])
def test_the_sweep_removes_what_its_database_has_forgotten_after_a_while_and_nothing_else(plane, is_reported):
    plane.engine.script("worker", Script(run_for=None))
    job = plane.submit()
    plane.settle()
    own_id = ensure_database_id(plane.sessions)
    put_orphan(plane, job, database_id=own_id if is_reported else "")
    assert gc_executor(plane.control) == 0
    plane.engine.advance(ORPHAN_GRACE - timedelta(seconds=1))
    plane.start()  # whoever takes over goes on counting
    assert gc_executor(plane.control) == 0
    plane.engine.advance(timedelta(seconds=1))
    assert gc_executor(plane.control) == 1
    assert plane.engine.attempts() == {plane.one(Attempt).id: own_id}
    (reported,) = plane.all(Event, kind=gc.ORPHAN_FORGOTTEN)
    assert "10 minutes" in reported.reason
    assert gc_executor(plane.control) == 0
    assert plane.all(Orphan) == []


def test_orphans_of_another_database_are_left_alone_and_reported_once(plane):
    plane.engine.script("worker", Script(run_for=None))
    job = plane.submit()
    plane.settle()
    orphan = put_orphan(plane, job, database_id="feedbeef")
    for _ in range(3):
        assert gc_executor(plane.control) == 0
        plane.engine.advance(2 * ORPHAN_GRACE)
    assert orphan in plane.engine.attempts()
    (reported,) = plane.all(Event, kind=gc.FOREIGN)
    assert (reported.data["attempts"], reported.data["databases"]) == ([orphan], ["feedbeef"])
    assert "left alone" in reported.reason
    assert plane.one(Orphan).is_foreign


def test_resources_of_another_database_are_not_assigned(plane):
    plane.engine.script("worker", Script(run_for=None))
    plane.engine.script("theirs", Script(run_for=None))
    job = plane.submit()
    plane.settle()
    order = plane.engine.order_of(ReplicaKey(job, plane.one(Attempt).id, "worker", 0))
    key = replace(order.key, attempt_id=AttemptId("att-theirs"), job_id="other")
    plane.engine.create(replace(order, key=key, database_id="feedbeef", gpus=("0",)))
    sync_nodes(plane.control)
    one, two = plane.submit("one", gpus=1), plane.submit("two", gpus=1)
    plane.settle()
    assert [replica.gpus for replica in plane.all(Replica, job_id=one)] == [["1"]]
    assert plane.state(two) == "queued"
    plane.engine.remove(key.attempt_id)
    sync_nodes(plane.control)
    plane.settle()
    assert [replica.gpus for replica in plane.all(Replica, job_id=two)] == [["0"]]


def test_an_emptied_database_leaves_alone_what_runs_and_a_restored_one_takes_it_back(plane):
    plane.engine.script("worker", Script(run_for=None))
    plane.submit()
    plane.settle()
    before = ensure_database_id(plane.sessions)
    held = plane.engine.attempts()
    with unit_of_work(plane.sessions) as session:
        for table in (Replica, Attempt, Job, DatabaseIdentity):
            session.execute(delete(table))
    plane.start()
    gc_executor(plane.control)
    plane.engine.advance(2 * ORPHAN_GRACE)
    assert gc_executor(plane.control) == 0
    assert plane.engine.attempts() == held
    assert ensure_database_id(plane.sessions) != before
    with unit_of_work(plane.sessions) as session:
        session.execute(update(DatabaseIdentity).values(id=before))
        session.execute(delete(Orphan))
    gc_executor(plane.control)
    assert not plane.one(Orphan).is_foreign


def test_what_has_ended_in_the_database_is_swept_at_once(plane):
    plane.engine.script("worker", Script(run_for=None))
    plane.submit()
    plane.settle()
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Attempt).values(ended_at=plane.engine.now))
    assert gc_executor(plane.control) == 1
    assert not plane.engine.attempts()


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
    assert gc_jobs(plane.control) == 0
    with unit_of_work(plane.sessions) as session:
        session.add(
            IdempotencyKey(user_id="user-1", key="k", request_digest="d", job_id=job, created_at=plane.engine.now)
        )
    plane.engine.advance(timedelta(days=2))
    assert gc_jobs(plane.control) == 1
    assert plane.one(Job, id=job).deleted_at is not None
    gc_expired(plane.control)
    assert not plane.all(IdempotencyKey)
    assert not [lease for lease in plane.all(Lease) if lease.name.startswith("attempt:")]


def test_sessions_and_codes_go_when_they_are_long_over(plane):
    now = plane.engine.now

    def token(name: str, **times) -> Token:
        return Token(id=name, user_id="user-1", name="browser", digest=name, scopes=["read"], created_at=now, **times)

    with unit_of_work(plane.sessions) as session:
        session.add_all(
            [
                token("expired", expires_at=now + timedelta(days=1)),
                token("revoked", revoked_at=now + timedelta(days=1)),
                token("valid", expires_at=now + timedelta(days=60)),
                token("eternal"),
                LoginCode(digest="code", user_id="user-1", expires_at=now + timedelta(minutes=10)),
            ]
        )
        session.flush()
        for token_id, days in (("expired", 60), ("valid", 1), ("eternal", 60)):
            until = now + timedelta(days=days)
            session.add(
                TensorBoardLink(
                    digest=token_id, user_id="user-1", token_id=token_id, job_ids=[], created_at=now, expires_at=until
                )
            )
    plane.engine.advance(timedelta(days=30))
    gc_expired(plane.control)
    assert not plane.all(LoginCode)
    assert {row.id for row in plane.all(Token)} == {"expired", "revoked", "valid", "eternal"}, (
        "lists show it for a while"
    )
    plane.engine.advance(timedelta(days=2))
    gc_expired(plane.control)
    assert {row.id for row in plane.all(Token)} == {"valid", "eternal"}
    # An address goes with its time, and with the token that asked for it.
    assert {row.digest for row in plane.all(TensorBoardLink)} == {"eternal"}


def test_a_long_ttl_never_stands_in_the_way_of_a_short_one(plane, monkeypatch):
    monkeypatch.setattr(gc, "BATCH_SIZE", 2)
    long = [plane.submit(f"a-{number}", ttl="30d") for number in range(5)]
    plane.settle()
    plane.advance(11)
    short = [plane.submit(f"b-{number}", ttl="60s") for number in range(3)]
    plane.settle()
    plane.advance(11)
    plane.engine.advance(timedelta(hours=1))
    assert gc_jobs(plane.control) == 3
    assert all(plane.one(Job, id=job).deleted_at is not None for job in short)
    assert all(plane.one(Job, id=job).deleted_at is None for job in long)
    assert gc_jobs(plane.control) == 0
    assert plane.story(short[0]).count("job.deleted") == 1


def test_events_of_deleted_jobs_go_after_their_retention_and_others_never(plane, monkeypatch):
    monkeypatch.setattr(gc, "EVENT_BATCH_SIZE", 3)
    deleted, remaining = plane.submit("deleted", ttl="60s"), plane.submit("kept")
    plane.settle()
    plane.advance(11)
    plane.engine.advance(timedelta(days=89))
    gc_jobs(plane.control)
    story, others = plane.story(deleted), plane.story(remaining)
    assert gc_events(plane.control, timedelta(days=90)) == 0
    plane.engine.advance(timedelta(days=2))
    live = plane.submit("live")
    plane.engine.script("worker", Script(run_for=None))
    plane.settle()
    plane.engine.advance(timedelta(days=1000))
    assert gc_events(plane.control, timedelta(days=90)) == len(story) > 3
    assert plane.story(deleted) == []
    assert plane.story(remaining) == others
    assert "job.running" in plane.story(live)


def test_metrics_go_with_their_job_and_those_of_others_stay(plane):
    deleted, remaining = plane.submit("deleted", ttl="60s"), plane.submit("kept")
    plane.settle()
    for job in (deleted, remaining):
        with unit_of_work(plane.control.sessions) as session:
            points = Points([1], [1], [0.5])
            add_metrics(session, StreamKey(job, 1, "worker", 0), {"loss": points}, now=plane.control.clock())
    assert gc_metrics(plane.control) == 0
    plane.advance(11)
    plane.engine.advance(timedelta(days=1))
    gc_jobs(plane.control)
    assert gc_metrics(plane.control) == 1
    assert [row.owner_id for row in plane.all(MetricStream)] == [remaining]
    assert gc_metrics(plane.control) == 0


def test_mlflow_runs_are_deleted_with_their_job_only(plane):
    jobs = {name: plane.submit(name, ttl=ttl) for name, ttl in (("deleted", "60s"), ("kept", "60d"))}
    plane.settle()
    with unit_of_work(plane.control.sessions) as session:
        now = plane.control.clock()
        for name, job_id in jobs.items():
            attempt = session.scalars(select(Attempt).where(Attempt.job_id == job_id)).one()
            project_id = session.get_one(Job, job_id).project_id
            common = {"project_id": project_id, "job_id": job_id}
            session.add(
                MlflowRun(
                    id=attempt.id, attempt_id=attempt.id, replica="worker-0", name="", status="RUNNING", params={},
                    tags={}, inputs={}, outputs=[], started_at=now, **common,
                )
            )  # fmt: skip
            session.add(
                MlflowModel(
                    id=f"m-{name}", run_id=attempt.id, name="m", kind="", status="LOGGED_MODEL_READY", params={},
                    tags={}, metrics=[], created_at=now, updated_at=now, **common,
                )
            )  # fmt: skip
    assert gc_runs(plane.control) == 0
    plane.advance(11)
    plane.engine.advance(timedelta(days=1))
    gc_jobs(plane.control)
    assert gc_runs(plane.control) == 2
    assert [row.job_id for row in plane.all(MlflowRun)] == [jobs["kept"]]
    assert [row.id for row in plane.all(MlflowModel)] == ["m-kept"]


def test_reasons_of_shapes_without_waiting_jobs_are_deleted(plane):
    job = plane.submit(gpus=64)
    plane.settle()
    assert plane.all(WaitReason)
    plane.want(job, "cancel")
    plane.advance(11)
    assert not plane.all(WaitReason)
