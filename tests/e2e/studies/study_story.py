"""A study that is killed in the midst of its work: a script that knows its own value, and what must hold at the end."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

TRIALS = 14
PARALLEL = 4
STEPS = 6
# Points below learn nothing, and train until they are ended.
LEARNS_FROM = 0.3

SCRIPT = textwrap.dedent(
    """
    import argparse, fcntl, json, os, sys, time
    from pathlib import Path
    import trainmaster_train as tm

    parser = argparse.ArgumentParser()
    parser.add_argument("--x", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--enough", type=Path, required=True)
    options = parser.parse_args()
    number = int(os.environ["TRAINMASTER_TRIAL"])
    lock = (options.out / f"lock-{number}").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        (options.out / f"TWICE-{number}").touch()
        sys.exit(3)
    step, value = 0, 0.0
    while step < STEPS or options.x < LEARNS_FROM:
        time.sleep(0.2)
        # Those of the last ones wait, so that the study runs as long as its platform is killed.
        while number > TRIALS - PARALLEL and step == STEPS - 1 and not options.enough.exists():
            time.sleep(0.05)
        step += 1
        value = options.x * (1 if options.x < LEARNS_FROM else step)
        tm.progress(step, STEPS, score=value)
    (options.out / f"trained-{number}").write_text(json.dumps(value))
    """
)


def begin(client: Any, out: Path, enough: Path, code: Path) -> str:
    """Its id. Trials leave marks in ``out``; the last ones end when ``enough`` is there."""
    out.mkdir()
    out.chmod(0o777)  # for the user of the project
    code.mkdir()
    numbers = {"STEPS": STEPS, "LEARNS_FROM": LEARNS_FROM, "TRIALS": TRIALS, "PARALLEL": PARALLEL}
    (code / "train.py").write_text("".join(f"{name} = {value}\n" for name, value in numbers.items()) + SCRIPT)
    command = [sys.executable, "train.py", "--out", str(out), "--enough", str(enough)]
    spec = {
        "name": "chaos",
        "template": {"command": command, "cpu": "100m", "grace": {"stop": 1}, "max_restarts": 100},
        "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
        "metric": "score",
        "goal": "maximize",
        "algorithm": "tpe",
        "budget": {"trials": TRIALS, "parallel": PARALLEL},
        "stopping": {"rule": "patience", "patience": 3},
        "initial": [{"x": 0.9}, {"x": 0.1}, {"x": 0.5}, {"x": 0.2}],
        "seed": 5,
    }
    study: str = client.create_study(spec, code=code).id
    return study


def begun(out: Path) -> int:
    """How many trials have begun."""
    return len(list(out.glob("lock-*")))


def check(client: Any, study: str, out: Path, reported: str) -> None:
    """No trial lost, doubled or forgotten, each result what was trained, no job but the trials'; ``told``: for who
    reads a failure.
    """
    ended = client.get_study(study)
    assert (ended.state, ended.reason) == ("succeeded", f"All {TRIALS} trials are done."), reported
    trials = sorted(client.list_trials(study), key=lambda trial: trial.number)
    assert [trial.number for trial in trials] == list(range(1, TRIALS + 1)), reported
    assert len({trial.parameters["x"] for trial in trials}) == TRIALS, reported
    for trial in trials:
        x = trial.parameters["x"]
        about = f"{reported} trial {trial.number} x={x}: {trial.state} {trial.reason}"
        if x < LEARNS_FROM:
            assert (trial.state, trial.result) == ("stopped", {"score": x}), about
            assert "Stopped early by the study's rule patience" in trial.reason, about
        else:
            trained = json.loads((out / f"trained-{trial.number}").read_text())
            assert trained == x * STEPS, about
            assert (trial.state, trial.result) == ("succeeded", {"score": trained}), about
    jobs = {job.id: job for job in client.list_jobs() if job.name.startswith("chaos")}
    assert sorted(jobs) == sorted(trial.job for trial in trials), reported
    for trial in trials:
        wanted = ("succeeded" if trial.state == "succeeded" else "cancelled", f"chaos-{trial.number}")
        assert (jobs[trial.job].state, jobs[trial.job].name) == wanted, reported
    assert not list(out.glob("TWICE-*")), f"a trial ran twice at once; {reported}"
