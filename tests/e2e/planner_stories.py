"""What the planner promises to those who share GPUs, on whichever engine: told on four places of equal size."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tests.e2e.stories import story_of

PLACES = 4


@dataclass
class Stage:
    """A platform that nobody else uses meanwhile. ``gpus``: of one place; ``python``: the jobs' own."""

    client: Any
    eventually: Any
    gpus: int
    python: str

    def submit(self, name: str, *, seconds: float = 3600, **spec: Any) -> Any:
        """A job of one place, or of as many as it has workers."""
        command = [self.python, "-c", f"import time; time.sleep({seconds})"]
        return self.client.submit(
            {"name": name, "command": command, "gpus": self.gpus, "cpu": "50m", "memory": "128Mi", **spec}
        )

    def runs(self, *jobs: Any) -> None:
        for job in jobs:
            self.eventually(lambda job=job: state(job) == "running", within_s=90, what=f"it runs: {story_of(job)}")

    def waits(self, job: Any, code: str) -> Any:
        """The reason, once it has this code."""

        def reason() -> Any:
            reported = job.detail().wait_reason
            return reported if reported is not None and reported.code == code else None

        return self.eventually(reason, within_s=60, what=f"{job.name} waits ({code}): {job.detail().wait_reason}")

    def clear(self) -> None:
        """Nobody is left, and the policy is what it was."""
        self.client.update_policy({"order": "default", "usage_weight": "default"})
        jobs = [self.client.job(job.id) for job in self.client.list_jobs(state=["queued", "starting", "running"])]
        for job in jobs:
            job.cancel()
        for job in jobs:
            job.wait(timeout_s=90)


def state(job: Any) -> str:
    return str(job.detail().state)


def placed_at(job: Any) -> datetime:
    """When it was given its places: how soon it runs there is the engine's."""
    found: datetime = min(event.at for event in job.events() if event.kind == "job.placed")
    return found


def a_limit_holds_though_places_are_free(stage: Stage) -> None:
    """A project has no more than its limit; others take what is left; whoever ends makes room for the next."""
    stage.client.create_project("students")
    stage.client.update_quota("students", limits={"gpus": 2 * stage.gpus})
    first, second, third = (stage.submit(f"student-{n}", project="students") for n in range(3))
    stage.runs(first, second)
    reason = stage.waits(third, "quota")
    reported = {name: reason.numbers[name] for name in ("limit", "held", "needed", "is_never")}
    thousandths = 1000 * stage.gpus
    assert reported == {"limit": 2 * thousandths, "held": 2 * thousandths, "needed": thousandths, "is_never": False}
    others = stage.submit("others")
    stage.runs(others)  # nobody waits behind it, and there was room
    assert state(third) == "queued"
    too_large = stage.submit("too-large", project="students", workers=3)
    assert stage.waits(too_large, "quota").numbers["is_never"]

    first.cancel()
    stage.runs(third)
    lines = {line.what: line for line in stage.client.get_quota("students").lines}
    assert (lines["gpus"].used, lines["gpus"].limit) == (2 * stage.gpus, 2 * stage.gpus)


def the_smaller_share_for_its_weight_comes_first(stage: Stage) -> None:
    """Of two projects that want a place the one comes next that has less of what it is due, whoever asked first."""
    for project in ("owls", "larks"):
        stage.client.create_project(project)
    stage.client.update_policy({"usage_weight": 0})  # what they hold now decides
    held = [stage.submit(f"{project[:-1]}-0", project=project) for project in ("owls", "larks")]
    held += [stage.submit("owl-1", project="owls"), stage.submit("guest")]
    stage.runs(*held)
    owl = stage.submit("owl-2", project="owls")
    lark, late = (stage.submit(f"lark-{n}", project="larks") for n in (1, 2))
    for job in (owl, lark, late):
        stage.waits(job, "no_room")

    held[3].cancel()
    stage.runs(lark)  # it asked later: its project has one place, the other one two
    assert state(owl) == "queued"

    stage.client.update_quota("owls", weight=4)
    held[1].cancel()
    stage.runs(owl)  # now its project has two places, of the four fifths of them that it is due; larks have one
    assert state(late) == "queued"


def a_short_job_fills_the_hole_and_the_gang_starts_when_it_was_reported(stage: Stage, *, hole_s: int) -> None:
    """A gang's place is kept: who surely ends before may use it, who might not waits, and the gang is not late."""
    stage.client.update_policy({"order": "fifo"})
    held = stage.submit("held", workers=PLACES - 1, max_run_time=f"{hole_s}s")
    stage.runs(held)
    gang = stage.submit("gang", workers=PLACES, seconds=0)
    reported = datetime.fromisoformat(stage.waits(gang, "no_room").numbers["expected_start"])
    endless = stage.submit("endless")
    short = stage.submit("short", seconds=0, max_run_time="3s")

    assert short.wait(timeout_s=60).state == "succeeded", story_of(short)
    assert state(gang) == "queued"
    assert stage.waits(endless, "reserved").numbers["before"] == gang.id
    assert gang.wait(timeout_s=90).state == "succeeded", story_of(gang)
    stage.runs(endless)
    assert placed_at(short) < placed_at(gang) < placed_at(endless)
    # That the one before is stopped and gone, and the look at the queue, take their time, which was not told.
    assert placed_at(gang) - reported < timedelta(seconds=10), f"told {reported}: {story_of(gang)}"
