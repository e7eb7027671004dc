"""A checkpoint that a user chose: the job goes on from it, also from a later one that it writes then, never from the
others.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller
from api.jobs import verbs
from core.db.engine import unit_of_work
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.tables import Attempt, Event, Job, PinnedCheckpoint, Retention
from core.domain.jobs.exits import ExitCause
from core.domain.metrics import Points
from executors.base import ReplicaKey
from executors.fake import Script
from scheduler.control.maintenance.gc import apply_retention

_PATH = "/data/output/checkpoints/step-{}"
ANN = Caller("user-1", "ann", True, frozenset(), "token-1", {})


def complete(plane, step: int, folder: Path | None = None) -> Path:
    """A checkpoint that was written now, by the clock of the plane."""
    done = (folder or plane.folder / "default/job") / f"checkpoints/step-{step}"
    done.mkdir(parents=True, exist_ok=True)
    (done / "state.pt").write_bytes(b"x")
    (done / ".complete").touch()
    for path in (done / "state.pt", done / ".complete", done):
        os.utime(path, (plane.engine.now.timestamp(),) * 2)
    return done


def choose(plane, job: str, step: int) -> None:
    with unit_of_work(plane.sessions) as session:
        row = session.get(Job, job)
        verbs.resume_from(UnitOfWork(session, plane.engine.now), ANN, row, f"checkpoints/step-{step}", "too far")
    plane.advance(1)


def resumed(plane, job: str) -> list[str | None]:
    return [attempt.resume_from for attempt in plane.all(Attempt, job_id=job)]


def lose(plane, job: str) -> None:
    attempt = plane.all(Attempt, job_id=job)[-1]
    plane.engine.end(ReplicaKey(job, attempt.id, "worker", 0), 137, ExitCause.SIGNALLED)
    plane.settle()
    plane.advance(60)


def test_a_running_job_starts_again_from_it_and_then_goes_on_from_what_it_writes(plane):
    plane.engine.script("worker", Script(run_for=timedelta(hours=9)))
    job = plane.submit(max_restarts=9)
    plane.settle()
    plane.advance(5)
    for step in (100, 200, 300):
        complete(plane, step)
    choose(plane, job, 100)
    complete(plane, 350)  # the stopped attempt's last word
    for _ in range(10):
        plane.advance(10)
        plane.settle()
    assert plane.state(job) == "running"
    assert resumed(plane, job) == [None, _PATH.format(100)]
    lose(plane, job)
    assert resumed(plane, job)[-1] == _PATH.format(100)
    plane.advance(5)
    complete(plane, 150)
    lose(plane, job)
    assert resumed(plane, job)[-1] == _PATH.format(150)
    assert "job.checkpoint_chosen" in plane.story(job)


def test_a_chosen_checkpoint_that_was_deleted_does_not_block(plane):
    plane.engine.script("worker", Script(run_for=timedelta(hours=9)))
    job = plane.submit(max_restarts=9)
    plane.settle()
    plane.advance(5)
    newest, chosen = complete(plane, 300), complete(plane, 100)
    choose(plane, job, 100)
    for file in sorted(chosen.iterdir()):
        file.unlink()
    chosen.rmdir()
    for _ in range(10):
        plane.advance(10)
        plane.settle()
    assert resumed(plane, job)[-1] == f"/data/output/checkpoints/{newest.name}"


def test_a_clone_in_the_output_of_its_original_goes_on_from_its_own_only(plane):
    plane.engine.script("worker", Script(run_for=timedelta(hours=9)))
    plane.submit("first")
    for step in (100, 300):
        complete(plane, step, plane.folder / "default/first")
    plane.engine.advance(timedelta(seconds=5))  # less than clocks may differ
    clone = plane.submit("second", max_restarts=9)
    given = "/data/resume/checkpoints/step-100"
    with unit_of_work(plane.sessions) as session:
        row = session.get(Job, clone)
        row.output_path, row.resume_from = "default/first", given
    plane.settle()
    plane.advance(5)
    lose(plane, clone)
    assert resumed(plane, clone) == [given, given]
    complete(plane, 150, plane.folder / "default/first")
    lose(plane, clone)
    assert resumed(plane, clone)[-1] == _PATH.format(150)


def test_retention_deletes_only_unneeded_checkpoints(plane):
    plane.engine.script("worker", Script(run_for=timedelta(hours=9)))
    job = plane.submit(max_restarts=9)
    plane.settle()
    plane.advance(5)
    complete(plane, 100)
    lose(plane, job)
    assert resumed(plane, job)[-1] == _PATH.format(100)
    for step in (200, 250, 300, 400, 500):
        complete(plane, step)
    partial = plane.folder / "default/job/checkpoints/.step-00000600.a2.partial"
    partial.mkdir()
    with unit_of_work(plane.sessions) as session:
        rule = {"last": 1, "best": None, "metric": None, "mode": "min", "every": 200}
        session.add(Retention(job_id=job, rule=rule, user="ann", updated_at=plane.engine.now))
        session.add(PinnedCheckpoint(job_id=job, path="checkpoints/step-250", user="ann", created_at=plane.engine.now))
    assert apply_retention(plane.control) == 1
    left = sorted(path.name for path in partial.parent.iterdir())
    # In use; every 200th; kept; the newest; being written.
    assert left == [".step-00000600.a2.partial", "step-100", "step-200", "step-250", "step-400", "step-500"]
    assert apply_retention(plane.control) == 0
    reported = [event.reason for event in plane.all(Event, kind="checkpoint.deleted")]
    assert reported == ["checkpoints/step-300, by the job's retention"]


def test_the_best_by_a_metric_stay_in_whichever_attempt_they_were_written(plane):
    plane.engine.script("worker", Script(run_for=timedelta(hours=9)))
    job = plane.submit(workers=8)
    plane.settle()
    loss = {100: 0.9, 200: 0.8, 300: 0.7, 400: 0.2, 500: 0.5}
    for step in loss:
        complete(plane, step)
    with unit_of_work(plane.sessions) as session:
        for attempt in (1, 2, 3, 4):
            for worker in range(8):
                # Each attempt wrote one checkpoint, the last one two; its first worker's word counts.
                steps = [100 * attempt] if attempt < 4 else [400, 500]
                values = [loss[step] + worker / 10 for step in steps]
                key = StreamKey(job, attempt, "worker", worker)
                add_metrics(session, key, {"val_loss": Points(steps, steps, values)}, now=plane.engine.now)
        rule = {"last": None, "best": 1, "metric": "val_loss", "mode": "min", "every": None}
        session.add(Retention(job_id=job, rule=rule, user="ann", updated_at=plane.engine.now))
    assert apply_retention(plane.control) == 3
    left = sorted(path.name for path in (plane.folder / "default/job/checkpoints").iterdir())
    assert left == ["step-400", "step-500"]  # the best, and the newest
