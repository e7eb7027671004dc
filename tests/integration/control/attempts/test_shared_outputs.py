"""Two jobs that write to one output at a time: each goes on from its own checkpoints, as far as they are told of."""

from __future__ import annotations

import os
from datetime import timedelta

from core.db.engine import unit_of_work
from core.db.tables import Attempt, Checkpoint, Job
from core.domain.jobs.exits import ExitCause
from executors.base import ReplicaKey
from executors.fake import Script


def tell(plane, job: str, step: int) -> None:
    """The job has written a checkpoint to the output that both have, and tells of it."""
    plane.advance(1)
    path = f"checkpoints/step-{step}"
    folder = plane.folder / "default/first" / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".complete").touch()
    os.utime(folder / ".complete", (plane.engine.now.timestamp(),) * 2)
    attempt = plane.all(Attempt, job_id=job)[-1].id
    with unit_of_work(plane.sessions) as session:
        row = Checkpoint(id=f"{job}-{step}", job_id=job, attempt_id=attempt, path=path, step=step)
        row.created_at = plane.engine.now
        session.add(row)


def resumed_after_a_loss(plane, job: str) -> str | None:
    attempt = plane.all(Attempt, job_id=job)[-1]
    plane.engine.end(ReplicaKey(job, attempt.id, "worker", 0), 137, ExitCause.SIGNALLED)
    plane.settle()
    plane.advance(60)
    found: str | None = plane.all(Attempt, job_id=job)[-1].resume_from
    return found


def test_a_clone_resumes_from_its_own_while_its_original_still_writes_next_to_it(plane):
    plane.engine.script("worker", Script(run_for=timedelta(hours=9)))
    original = plane.submit("first", max_restarts=9)
    clone = plane.submit("second", max_restarts=9)
    with unit_of_work(plane.sessions) as session:
        session.get(Job, clone).output_path = "default/first"
    plane.settle()
    plane.advance(5)

    tell(plane, clone, 100)
    tell(plane, original, 900)
    assert resumed_after_a_loss(plane, clone) == "/data/output/checkpoints/step-100"
    assert resumed_after_a_loss(plane, original) == "/data/output/checkpoints/step-900"

    tell(plane, original, 100)  # in the place of the clone's: it has none any more
    assert resumed_after_a_loss(plane, clone) is None
