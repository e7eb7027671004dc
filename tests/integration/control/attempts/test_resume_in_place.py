"""What replicas that start again within an attempt go on from: the newest checkpoint, not the one the attempt began
with.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from core.db.tables import Attempt
from core.domain.jobs.exits import ExitCause
from executors.base import ReplicaKey
from executors.fake import Script

_PATH = "/data/output/checkpoints/step-{}"


def complete(folder: Path, step: int) -> None:
    done = folder / f"default/job/checkpoints/step-{step}"
    done.mkdir(parents=True)
    (done / ".complete").touch()


def second_attempt(plane, job: str) -> str:
    """End the first attempt when there is step 7; then the second goes on until there is step 5000."""
    complete(plane.folder, 7)
    first = plane.one(Attempt, job_id=job)
    for index in range(3):
        plane.engine.end(ReplicaKey(job, first.id, "worker", index), 137, ExitCause.SIGNALLED)
    plane.settle()
    plane.advance(60)
    second = plane.all(Attempt, job_id=job)[-1]
    assert (second.number, second.state, second.resume_from) == (2, "running", _PATH.format(7))
    complete(plane.folder, 5000)
    return str(second.id)


def described(plane, job: str, attempt: str, index: int, generation: int) -> str:
    order = plane.engine.order_of(ReplicaKey(job, attempt, "worker", index, generation))
    return str(order.env["TRAINMASTER_RESUME_FROM"])


def test_all_of_a_new_world_go_on_from_the_newest_checkpoint(plane):
    plane.engine.script("worker", Script(run_for=timedelta(hours=1)))
    job = plane.submit(workers={"min": 2, "max": 3}, cpu=2)
    plane.settle()
    attempt = second_attempt(plane, job)
    plane.engine.end(ReplicaKey(job, attempt, "worker", 0), 137, ExitCause.SIGNALLED)
    plane.settle()
    assert plane.one(Attempt, id=attempt).world == 3
    newest = [described(plane, job, attempt, *who) for who in ((1, 1), (2, 1), (0, 2))]
    assert newest == [_PATH.format(5000)] * 3


def test_a_replica_that_starts_again_alone_goes_on_from_the_newest_checkpoint(plane):
    plane.engine.script("worker", Script(run_for=timedelta(hours=1)))
    job = plane.submit(workers=None, roles={"worker": {"replicas": 3, "restart": "replica"}}, max_restarts=9)
    plane.settle()
    attempt = plane.one(Attempt, job_id=job).id
    for step, generation in ((7, 1), (5000, 2)):
        complete(plane.folder, step)
        plane.engine.end(ReplicaKey(job, attempt, "worker", 1, generation), 137, ExitCause.SIGNALLED)
        plane.settle()
        plane.advance(120)
        assert described(plane, job, attempt, 1, generation + 1) == _PATH.format(step)
