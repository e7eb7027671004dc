"""What ``examples/elastic`` writes about its steps, on whichever engine it trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.stories import story_of

STEPS = 240
# Long enough for a worker that joins to import torch on a loaded machine.
ARGS = ["--steps", str(STEPS), "--step-seconds", "0.2"]
SPEC: dict[str, Any] = {"workers": {"min": 2, "max": 3}, "cpu": "500m", "command": ["python", "train.py", *ARGS]}


class Steps:
    """``output``: the job's folder of outputs as this machine sees it."""

    def __init__(self, output: Path) -> None:
        self.file = output / "steps.jsonl"

    def all(self) -> list[dict[str, Any]]:
        lines = self.file.read_text().splitlines(keepends=True) if self.file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def first(self, world: int, size: int | None = None) -> dict[str, Any] | None:
        """The first step in this world or a later one, with so many workers if stated."""
        return next((step for step in self.all() if step["world"] >= world and size in (None, step["size"])), None)


def check_record(noted: list[dict[str, Any]], count: int) -> None:
    """Each of ``count`` steps in its order, none lost and none twice, when rank 0 was killed in the first world.

    Whoever is killed may have taken its last step with the others and not have noted it. The others go on behind that
    step, so its line, and no other, may be missing.
    """
    seam = max(step["step"] for step in noted if step["world"] == 1) + 1
    numbers = [step["step"] for step in noted]
    assert numbers in (list(range(1, count + 1)), [*range(1, seam), *range(seam + 1, count + 1)])


def check_elastic_training(job: Any, steps: Steps, lose: Any, eventually: Any) -> None:
    """Train with three, ``lose`` the worker of rank 0, and see another one join and the end: nothing lost, nothing
    twice.
    """
    eventually(lambda: steps.first(1, 3) and job.detail().state == "running", within_s=240, what="three workers train")
    lose()
    two = eventually(lambda: steps.first(2, 2), within_s=120, what="the others go on")
    three = eventually(lambda: steps.first(3, 3), within_s=180, what="another one joins")
    detail = job.wait(timeout_s=300)

    assert detail.state == "succeeded", f"{detail.exit}\n{story_of(job)}"
    assert detail.attempt_count == 1, story_of(job)
    assert two["pid"] == three["pid"]  # the processes stay
    check_record(steps.all(), STEPS)
    assert json.loads(job.read_file("result.json"))["accuracy"] >= 0.95
