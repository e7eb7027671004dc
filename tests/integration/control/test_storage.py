"""Projects' storage is measured, and running jobs are told of a crossing once."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import delete

from core.db.engine import unit_of_work
from core.db.repositories import storage_usage
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.tables import Archive, Event, Job, Project, StorageUsage, Volume
from core.domain.metrics import Points
from executors.fake import Script
from scheduler.control import fence
from scheduler.control.maintenance.storage import StorageMeter

PROJECT = "project-1"
MIB = 2**20


def fill(file, size):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(os.urandom(size))


def set_quota(plane, storage):
    with unit_of_work(plane.sessions) as session:
        session.get_one(Project, PROJECT).quota = {"limit": {"storage": storage}}
        storage_usage.request_measurement(session, PROJECT, plane.engine.now)


def measure(plane):
    """As the meter's thread does; returns the row."""
    StorageMeter(plane.control).work()
    return plane.one(StorageUsage, project_id=PROJECT)


def test_each_kind_is_measured_for_its_project_alone(plane, tmp_path):
    with unit_of_work(plane.sessions) as session:
        session.add(Project(id="project-2", name="default2", created_at=plane.engine.now, quota={}))
        session.add(Volume(id="v2", name="nfs", kind="local", root=str(tmp_path / "nfs"), created_at=plane.engine.now))
        for digit, owner, size in (("a", PROJECT, 3_000), ("b", None, 500), ("c", None, 70_000)):
            session.add(
                Archive(
                    digest=f"sha256:{digit * 64}", size_bytes=size, received_bytes=size, is_complete=True,
                    user_id="user-1", project_id=owner, created_at=plane.engine.now, used_at=plane.engine.now,
                )
            )  # fmt: skip
    job = plane.submit("here", code=f"sha256:{'b' * 64}")
    plane.submit("elsewhere", output="nfs/runs/1")
    with unit_of_work(plane.sessions) as session:
        elsewhere = session.get_one(Job, "job-elsewhere")
        elsewhere.output_volume, elsewhere.output_path = "nfs", "runs/1"
        points = Points(steps=[1, 2], times=[1, 2], values=[0.5, 0.25])
        add_metrics(session, StreamKey(job, 1, "worker", 0), {"loss": points}, now=plane.engine.now)
    fill(plane.folder / "default" / "job-here" / "model.pt", MIB)
    fill(plane.folder / "default" / ".uploads" / "abc", MIB // 2)
    fill(plane.folder / ".uploads" / "default.abc", MIB // 2)
    fill(plane.folder / ".uploads" / "default2.abc", 8 * MIB)
    fill(plane.folder / ".models" / "default" / "version-1" / "model.pt", 2 * MIB)
    fill(plane.folder / "default2" / "model.pt", 16 * MIB)
    fill(tmp_path / "nfs" / "runs" / "1" / "model.pt", 4 * MIB)
    fill(tmp_path / "nfs" / "runs" / "2" / "model.pt", 16 * MIB)
    row = measure(plane)
    folders = 64 * 2**10
    assert 5 * MIB <= row.parts["outputs"] < 5 * MIB + folders
    assert MIB <= row.parts["uploads"] < MIB + folders
    assert 2 * MIB <= row.parts["models"] < 2 * MIB + folders
    assert row.parts["archives"] == 3_500
    assert row.parts["metrics"] == 32
    assert row.used_bytes == sum(row.parts.values())
    assert row.measured_at == plane.engine.now
    other = plane.one(StorageUsage, project_id="project-2")
    assert 24 * MIB <= other.used_bytes < 24 * MIB + folders


def test_running_jobs_get_one_event_per_crossing_and_go_on(plane):
    plane.engine.script("worker", Script(run_for=None))
    job = plane.submit()
    plane.settle()
    waiting = plane.submit("waiting", workers=50)
    fill(plane.folder / "default" / "job" / "model.pt", 9 * MIB)
    set_quota(plane, "10Mi")

    def announced():
        return [kind for kind in plane.story(job) if kind.startswith("storage.")]

    assert measure(plane).level == 80
    assert announced() == ["storage.warning"]
    fill(plane.folder / "default" / "job" / "more.pt", 2 * MIB)
    for _ in range(3):
        plane.engine.advance(timedelta(minutes=10))
        measure(plane)
    assert announced() == ["storage.warning", "storage.full"]
    assert plane.state(job) == "running"
    assert [kind for kind in plane.story(waiting) if kind.startswith("storage.")] == []
    event = plane.all(Event, job_id=job, kind="storage.full")[0]
    assert event.reason.startswith("Project default uses 11.0 MiB of its storage quota of 10.0 MiB (110 %).")
    assert len(plane.all(Event, project_id=PROJECT, job_id=None, kind="storage.full")) == 1
    (plane.folder / "default" / "job" / "model.pt").unlink()
    plane.engine.advance(timedelta(minutes=10))
    assert measure(plane).level == 0
    fill(plane.folder / "default" / "job" / "again.pt", 9 * MIB)
    plane.engine.advance(timedelta(minutes=10))
    measure(plane)
    assert announced() == ["storage.warning", "storage.full", "storage.full"]


def test_a_project_is_measured_when_it_is_due_or_its_files_were_deleted(plane):
    first = measure(plane)
    plane.engine.advance(timedelta(minutes=10))
    assert measure(plane).measured_at == first.measured_at  # nothing runs: nothing changes
    with unit_of_work(plane.sessions) as session:
        storage_usage.request_measurement(session, PROJECT, plane.engine.now)
    assert measure(plane).measured_at == plane.engine.now
    plane.engine.script("worker", Script(run_for=None))
    plane.submit()
    plane.settle()
    begin = plane.engine.now
    plane.engine.advance(timedelta(minutes=4))
    assert measure(plane).measured_at == begin
    plane.engine.advance(timedelta(minutes=2))  # its next measurement was an hour away before the job ran
    assert measure(plane).measured_at == plane.engine.now
    plane.engine.advance(timedelta(minutes=6))
    assert measure(plane).measured_at == plane.engine.now


def test_uploads_count_at_once_and_those_during_a_measurement_stay(plane, monkeypatch):
    def add(size):
        with unit_of_work(plane.sessions) as session:
            storage_usage.add_bytes(session, PROJECT, size, plane.engine.now)

    def used():
        with unit_of_work(plane.sessions) as session:
            return storage_usage.read_state(session, PROJECT).used_bytes

    add(1000)
    add(500)
    assert used() == 1500
    plane.engine.advance(timedelta(minutes=1))
    real = storage_usage.load_measured

    def load_then_add(*arguments):
        row = real(*arguments)
        add(70)
        return row

    monkeypatch.setattr(storage_usage, "load_measured", load_then_add)
    row = measure(plane)
    assert row.added_bytes == 70
    assert row.due_at <= plane.engine.now + timedelta(minutes=1)
    assert used() == row.used_bytes + 70


def test_a_volume_that_is_away_keeps_the_last_measurement(plane, tmp_path):
    fill(plane.folder / "default" / "job" / "model.pt", MIB)
    before = measure(plane)
    with unit_of_work(plane.sessions) as session:
        session.get_one(Volume, "volume-1").root = str(tmp_path / "gone")
        storage_usage.request_measurement(session, PROJECT, plane.engine.now)
    after = measure(plane)
    assert (after.used_bytes, after.measured_at) == (before.used_bytes, before.measured_at)
    assert after.due_at > plane.engine.now
    with unit_of_work(plane.sessions) as session:
        session.execute(delete(StorageUsage))  # never measured
    assert measure(plane).measured_at is None


@pytest.mark.parametrize("gone", ["deleted", "leased"])
def test_no_measurement_without_the_project_or_while_another_scheduler_measures(plane, gone):
    meter = StorageMeter(replace(plane.control, holder="other"))
    if gone == "deleted":
        with unit_of_work(plane.sessions) as session:
            session.get_one(Project, PROJECT).deleted_at = plane.engine.now
        assert meter.measure(PROJECT) is False
    else:
        with fence.leased(plane.control, f"storage:{PROJECT}"):
            assert meter.measure(PROJECT) is False
    assert plane.all(StorageUsage) == []
