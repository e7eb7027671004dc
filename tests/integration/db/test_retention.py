"""Retention policies: what expires, what never does, and that a killed run is completed by the next."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
from sqlalchemy import update

from core.db.engine import unit_of_work
from core.db.repositories import retention
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.tables import (
    Attempt,
    Base,
    Event,
    Job,
    MetricStream,
    Model,
    ModelVersion,
    PinnedCheckpoint,
    Project,
    Replica,
)
from core.domain.metrics import Points
from core.domain.sharing.retention import DataKind
from executors.fake import Script
from scheduler.control.maintenance import retention as applying
from scheduler.control.maintenance.gc import collect_garbage
from scheduler.control.maintenance.retention import apply_policies, check_disks
from tests.integration.control.conftest import Plane

DAY = 86_400.0


@pytest.fixture
def plane(sessions, tmp_path):
    plane = Plane(sessions, tmp_path)
    plane.engine.script("worker", Script(run_for=timedelta(seconds=1)))
    return plane


def ended_job(plane: Plane, name: str) -> str:
    job_id = plane.submit(name)
    own = f"default/{job_id}"
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Job).where(Job.id == job_id).values(output_path=own))
    plane.settle()
    plane.advance(5)
    assert plane.state(job_id) == "succeeded"
    for path in ("checkpoints/a.pt", f".trainmaster/logs/{job_id}/1/worker-0.log"):
        file = plane.folder / own / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("content")
    with unit_of_work(plane.sessions) as session:
        points = {"loss": Points([0], [1_000], [0.5])}
        add_metrics(session, StreamKey(job_id, 1, "worker", 0), points, [], now=plane.engine.now)
    return job_id


def set_policy(plane: Plane, **days: float) -> None:
    policy = {kind: age * DAY for kind, age in days.items()}
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Project).values(retention=policy))


def files(plane: Plane, job_id: str) -> set[str]:
    top = plane.folder / "default" / job_id
    return {file.name for file in top.rglob("*") if file.is_file()}


def test_without_a_policy_all_stays_and_with_one_each_kind_goes_in_its_time(plane):
    job = ended_job(plane, "a")
    plane.engine.advance(timedelta(days=400))
    assert apply_policies(plane.control) == 0
    set_policy(plane, outputs=500)
    assert apply_policies(plane.control) == 0
    set_policy(plane, outputs=30)
    assert apply_policies(plane.control) == 1
    assert files(plane, job) == {"worker-0.log"}
    set_policy(plane, logs=30, metrics=30, code=30)
    assert apply_policies(plane.control) == 3
    assert (files(plane, job), plane.all(MetricStream)) == (set(), [])
    assert set(plane.one(Job).expired) == {"outputs", "logs", "metrics", "code"}
    assert apply_policies(plane.control) == 0  # once for each
    reasons = [event.reason for event in plane.all(Event, kind="retention.applied")]
    assert reasons[0] == "The project's retention deleted of 1 ended job: outputs older than 30d."
    set_policy(plane, events=30)
    apply_policies(plane.control)
    assert plane.story(job) == []


def test_a_job_goes_with_all_its_rows_and_files(plane):
    job = ended_job(plane, "a")
    pinned = ended_job(plane, "b")
    with unit_of_work(plane.sessions) as session:
        retention.set_pin(session, pinned, "ann", plane.engine.now)
    plane.engine.advance(timedelta(days=31))
    set_policy(plane, jobs=30)
    assert apply_policies(plane.control) == 1
    assert not (plane.folder / "default" / job).exists()
    assert (files(plane, pinned), [row.id for row in plane.all(Job)]) == ({"a.pt", "worker-0.log"}, [pinned])
    assert {row.job_id for table in (Attempt, Replica) for row in plane.all(table)} == {pinned}
    assert plane.story(job) == []


@pytest.mark.parametrize("reason", ["pinned", "registered", "checkpoint", "resumed", "live"])
def test_what_is_needed_is_never_deleted(plane, reason):
    job = ended_job(plane, "a")
    now = plane.engine.now
    with unit_of_work(plane.sessions) as session:
        if reason == "pinned":
            retention.set_pin(session, job, "ann", now)
        elif reason == "registered":
            session.add(Model(id="m", project_id="project-1", user_id="user-1", name="m", created_at=now,
                              updated_at=now))  # fmt: skip
            session.flush()
            session.add(ModelVersion(id="v", model_id="m", project_id="project-1", user_id="user-1", number=1,
                                     state="ready", source={}, volume="output", path="p", job_id=job, created_at=now,
                                     updated_at=now))  # fmt: skip
        elif reason == "checkpoint":
            session.add(PinnedCheckpoint(job_id=job, path="checkpoints/a.pt", user="ann", created_at=now))
    if reason == "resumed":
        plane.engine.script("worker", Script(run_for=None))
        clone = plane.submit("clone")
        with unit_of_work(plane.sessions) as session:
            session.execute(update(Job).where(Job.id == clone).values(cloned_from=job))
    if reason == "live":
        with unit_of_work(plane.sessions) as session:
            session.execute(update(Attempt).values(ended_at=None))
    plane.engine.advance(timedelta(days=31))
    set_policy(plane, jobs=30, outputs=30)
    apply_policies(plane.control)
    assert "a.pt" in files(plane, job)
    assert job in {row.id for row in plane.all(Job)}


def test_an_output_that_the_spec_named_stays_but_for_the_jobs_logs(plane):
    job = ended_job(plane, "a")
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Job).values(output_path="shared"))
    for path in ("other.pt", f".trainmaster/logs/{job}/1/worker-0.log", ".trainmaster/logs/job-b/1/worker-0.log"):
        file = plane.folder / "shared" / path
        file.parent.mkdir(parents=True) if not file.parent.exists() else None
        file.write_text("content")
    plane.engine.advance(timedelta(days=31))
    set_policy(plane, jobs=30, outputs=30)
    apply_policies(plane.control)
    left = {str(file.relative_to(plane.folder / "shared")) for file in (plane.folder / "shared").rglob("*.*")}
    assert {"other.pt", ".trainmaster/logs/job-b/1/worker-0.log"} <= left
    assert not (plane.folder / "shared" / ".trainmaster/logs" / job).exists()
    assert plane.all(Job) == []


def test_a_run_that_was_killed_is_completed_by_the_next(plane):
    job = ended_job(plane, "a")
    plane.engine.advance(timedelta(days=31))
    set_policy(plane, outputs=30)
    with unit_of_work(plane.sessions) as session:  # marked, and killed before the files were deleted
        assert retention.begin_expiry(session, [job], DataKind.OUTPUTS, plane.engine.now) == [job]
    assert "a.pt" in files(plane, job)
    apply_policies(plane.control)
    assert files(plane, job) == {"worker-0.log"}
    assert retention.PENDING not in plane.one(Job).expired


def test_all_tables_that_refer_to_jobs_are_emptied_or_protect_the_job():
    protecting = {"model_versions", "serving_replicas", "trials"}
    referring = {
        table.name
        for table in Base.metadata.sorted_tables
        for key in table.foreign_keys
        if key.column.table is Job.__table__
    }
    names = [table.name for table in Base.metadata.sorted_tables]
    assert all(names.index(name) > names.index("jobs") for name in referring)
    assert protecting <= referring


def test_a_disk_that_is_nearly_full_is_reported_once_and_when_it_has_room_again(plane, settings, monkeypatch):
    for free, kinds in ((50, []), (5, ["disk.warning"]), (4, ["disk.warning"]), (11, ["disk.warning"]),
                        (40, ["disk.warning", "disk.ok"])):  # fmt: skip
        monkeypatch.setattr(applying.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(total=100, free=free))
        check_disks(plane.control, settings)
        assert [event.kind for event in plane.all(Event) if event.kind.startswith("disk.")] == kinds
    assert "is 95 % full" in next(event.reason for event in plane.all(Event, kind="disk.warning"))


def test_garbage_collection_applies_the_policies(plane, settings):
    ended_job(plane, "a")
    plane.engine.advance(timedelta(days=31))
    set_policy(plane, jobs=30)
    collect_garbage(plane.control, settings)
    assert plane.all(Job) == []
