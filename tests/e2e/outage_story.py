"""A trial and a failing job that end while the platform is away: their metrics and exit codes are there when it is
back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.e2e.stories import story_of

# Waits for its sign in the output, so that it ends when nobody is there.
TRIAL = """
import os, time
while not os.path.exists("/data/output/go"):
    time.sleep(0.1)
for step in range(1, 4):
    print("step=%d score=%.2f" % (step, step / 4), flush=True)
raise SystemExit({code})
"""


def begin(client: Any, eventually: Any) -> tuple[str, str]:
    """A study with one trial and a job that will end with 3; returns the job's id of each, when both run."""
    study = {
        "name": "outage",
        "template": {"command": ["python3", "-c", TRIAL.format(code=0)], "cpu": "100m"},
        "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
        "metric": "score",
        "goal": "maximize",
        "algorithm": "random",
        "budget": {"trials": 1},
    }
    client.create_study(study)
    failing = client.submit(
        {"name": "failing", "command": ["python3", "-c", TRIAL.format(code=3)], "cpu": "100m", "max_restarts": 0}
    ).id
    trial = eventually(lambda: client.list_trials_page("outage").items, within_s=60, what="the trial")[0].job
    for job in (trial, failing):
        eventually(lambda job=job: client.get_job(job).state == "running", within_s=120, what="it runs")
    return trial, failing


def let_end(output: Path, jobs: tuple[str, str], eventually: Any, is_gone: Any) -> None:
    """Without a platform. ``is_gone(job)``: whether nothing of it runs any more."""
    for job in jobs:
        (folder,) = [path for path in output.rglob(job) if path.is_dir() and ".trainmaster" not in path.parts]
        (folder / "go").touch()
        eventually(lambda job=job: is_gone(job), within_s=60, what="its container ends though nobody takes its reports")


def check(client: Any, jobs: tuple[str, str], eventually: Any) -> None:
    """The platform is back."""
    trial, failing = jobs
    ended = eventually(
        lambda: (job := client.get_job(failing)).state == "failed" and job, within_s=120, what="the failure is told"
    )
    assert ended.exit.exit_code == 3, story_of(client.job(failing))
    assert metric(client, failing) == [0.25, 0.5, 0.75]
    found = eventually(
        lambda: (one := trial_of(client)).state != "running" and one, within_s=120, what="the trial has ended"
    )
    assert (found.state, found.result) == ("succeeded", {"score": 0.75}), found
    assert client.get_job(trial).attempt_count == 1
    assert metric(client, trial) == [0.25, 0.5, 0.75]


def trial_of(client: Any) -> Any:
    (trial,) = client.list_trials_page("outage").items
    return trial


def metric(client: Any, job: str) -> list[float]:
    (series,) = client.chart_metrics(job, names=["score"]).series
    return list(series.points.values)
