"""Elastic jobs on the whole platform: workers are killed, the others train on, and new ones join."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.elastic_steps import Steps, check_record
from tests.e2e.stories import story_of

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]

ROOT = Path(__file__).parents[2]
ELASTIC = ROOT / "examples" / "elastic"
# Any program of any framework: it knows nothing of worlds, and trains until it sees that all are there again.
PLAIN = """
import os, pathlib, time
name = os.environ["TRAINMASTER_INDEX"] + "-" + os.environ["TRAINMASTER_WORLD"]
here = pathlib.Path(os.environ["TRAINMASTER_OUTPUT_DIR"]) / name
here.write_text(os.environ["RANK"] + " of " + os.environ["WORLD_SIZE"])
while not (here.parent / "done").exists():
    time.sleep(0.05)
"""

# Horovod's elastic interface, and nothing that is ours but the import.
HOROVOD = """
import os, pathlib, time
import torch
import trainmaster_train.horovod.torch as hvd
here = pathlib.Path(os.environ["TRAINMASTER_OUTPUT_DIR"])
hvd.init()
state = hvd.elastic.TorchState(step=0)
@hvd.elastic.run
def train(state):
    is_last = 0
    while not is_last:
        is_last = hvd.allreduce(torch.tensor([int((here / "done").exists())]), op=hvd.Max).item()
        state.step += 1
        with (here / "steps").open("a") as stream:
            print(state.step, os.environ["TRAINMASTER_INDEX"], hvd.rank(), hvd.size(), os.getpid(), file=stream)
        time.sleep(0.05)
        state.commit()
train(state)
"""


def output_of(platform: Any, job: Any) -> Path:
    return Path(platform.home / "output" / job.detail().output.partition("/")[2])


def worker(processes_of: Any, job: Any, index: int) -> int:
    """The pid of the user's process of a replica."""
    found = []
    for pid in processes_of(f"TRAINMASTER_JOB_ID={job.id}"):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        if f"TRAINMASTER_INDEX={index}".encode() in environment and b"python" in words.split(b"\0")[0]:
            found.append(pid)
    assert len(found) == 1, (found, story_of(job))
    return found[0]


def test_the_others_keep_their_processes_and_train_on_when_one_is_killed(
    platform: Any, eventually: Any, processes_of: Any
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    script = ROOT / "examples" / "data" / "make_digits.py"
    subprocess.run([sys.executable, str(script), str(platform.home / "data" / "digits")], check=True)
    spec = {
        "name": "digits-elastic",
        "workers": {"min": 1, "max": 2},
        "command": [sys.executable, "train.py", "--steps", "400", "--step-seconds", "0.02"],
        "input": "data/digits",
    }
    job = platform.client.submit(spec, code=ELASTIC)
    steps = Steps(output_of(platform, job))
    eventually(lambda: len(steps.all()) >= 10 and job.detail().state == "running", within_s=120, what="the first steps")
    survivor = worker(processes_of, job, 1)
    os.kill(worker(processes_of, job, 0), signal.SIGKILL)  # rank 0: the other one takes its place
    # Another may join before the survivor has taken a step alone.
    eventually(lambda: steps.first(2), within_s=60, what="a step without it")
    both = eventually(lambda: steps.first(3, 2), within_s=120, what="a step with another one in its place")
    detail = job.wait(timeout_s=180)

    assert detail.state == "succeeded", story_of(job)
    assert detail.attempt_count == 1
    assert both["pid"] == survivor  # the survivor is rank 0, in the process that it was
    check_record(steps.all(), 400)
    assert json.loads(job.read_file("result.json"))["accuracy"] >= 0.95
    shown = platform.cli("show", job.id).stdout
    assert "2 of 1 to 2 workers. worker-0 joined." in " ".join(shown.split())


def test_a_program_that_knows_nothing_of_it_is_started_again_in_place(
    platform: Any, eventually: Any, processes_of: Any
) -> None:
    spec = {"name": "plain", "workers": {"min": 2, "max": 3}, "command": [sys.executable, "-c", PLAIN]}
    job = platform.client.submit(spec)
    output = output_of(platform, job)

    def reported(world: int) -> dict[str, str]:
        return {path.name: path.read_text() for path in output.glob(f"?-{world}")}

    # Before it runs a loss ends the gang, as any other.
    eventually(lambda: len(reported(1)) == 3 and job.detail().state == "running", within_s=60, what="three workers")
    os.kill(worker(processes_of, job, 1), signal.SIGKILL)
    eventually(lambda: len(reported(3)) == 3, within_s=60, what="three workers again")
    # Whoever still starts when the third comes back reports only the next world.
    assert reported(2).items() <= {"0-2": "0 of 2", "2-2": "1 of 2"}.items()
    assert reported(3) == {"0-3": "0 of 3", "2-3": "1 of 3", "1-3": "2 of 3"}
    (output / "done").touch()
    detail = job.wait(timeout_s=60)
    assert detail.state == "succeeded", story_of(job)
    assert detail.attempt_count == 1


def test_a_horovod_script_trains_on_with_nothing_but_its_import_changed(
    platform: Any, eventually: Any, processes_of: Any
) -> None:
    pytest.importorskip("torch")
    spec = {"name": "hvd", "workers": {"min": 1, "max": 2}, "command": [sys.executable, "-c", HOROVOD]}
    job = platform.client.submit(spec)
    output = output_of(platform, job)

    def steps(index: str, size: str) -> list[tuple[int, ...]]:
        """Of one worker in worlds of a size: number, rank, pid."""
        lines = (output / "steps").read_text().splitlines() if (output / "steps").exists() else []
        words = [line.split() for line in lines if len(line.split()) == 5]
        return [(int(w[0]), int(w[2]), int(w[4])) for w in words if (w[1], w[3]) == (index, size)]

    eventually(lambda: len(steps("1", "2")) >= 3 and job.detail().state == "running", within_s=120, what="steps")
    first = worker(processes_of, job, 0)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: steps("1", "1"), within_s=60, what="a step without it")
    joined = eventually(
        lambda: [step for step in steps("0", "2") if step[2] != first], within_s=120, what="a step with another one"
    )
    (output / "done").touch()
    detail = job.wait(timeout_s=120)
    assert detail.state == "succeeded", story_of(job)
    assert detail.attempt_count == 1
    alone = steps("1", "1")
    assert {rank for _, rank, _ in alone} == {0}
    assert {pid for _, _, pid in steps("1", "2")} == {pid for _, _, pid in alone}  # the survivor keeps its process
    assert joined[0][0] > alone[-1][0]  # and gives its state to whoever joins


# Its steps take as long with any number of workers.
SATURATED = """
import os, time
import trainmaster_train as tm
step = 0
while True:
    time.sleep(0.1)
    step += 1
    if os.environ["RANK"] == "0":
        tm.progress(step)
"""


def test_a_job_that_more_workers_make_no_faster_stops_growing(platform: Any, eventually: Any) -> None:
    milli = 1000 * (os.cpu_count() or 1)
    command = [sys.executable, "-u", "-c", SATURATED]
    workers = {"min": 1, "max": 3}
    job = platform.client.submit({"name": "saturated", "workers": workers, "cpu": f"{milli // 4}m", "command": command})

    def measured() -> dict[int, float]:
        return {speed.replicas: speed.steps_per_s for speed in job.detail().speeds}

    eventually(lambda: 3 in measured(), within_s=90, what="the speed with three workers")
    blocker = platform.client.submit(
        {
            "name": "blocker",
            "cpu": f"{milli * 2 // 5}m",
            "command": [sys.executable, "-c", "import time; time.sleep(600)"],
        }
    )
    eventually(lambda: job.detail().growth_note, within_s=90, what="the speed with two workers")
    time.sleep(16)  # the planner reads speeds every 15 s
    blocker.cancel()
    blocker.wait(timeout_s=60)
    time.sleep(5)  # several plans
    shown = " ".join(platform.cli("show", job.id).stdout.split())
    workers_now = [replica for replica in job.detail().attempt.replicas if replica.state == "running"]
    job.cancel()
    assert len(workers_now) == 2, story_of(job)
    assert sorted(measured()) == [2, 3]
    assert "2 workers: " in shown
    assert "It does not grow beyond" in shown
