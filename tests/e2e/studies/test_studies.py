"""A study on the whole embedded platform: trials are jobs, and their results come from what a script prints anyway."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]

# Half of the trials print their metric, the others write hypertune's file, as `cloudml-hypertune` does.
SCRIPT = textwrap.dedent(
    """
    import argparse, json, os, time

    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--layers", type=int, required=True)
    options = parser.parse_args()
    told = json.loads(os.environ["TRAINMASTER_PARAMETERS"])
    assert told == {"lr": options.lr, "layers": options.layers}, told
    with open(os.environ["TRAINMASTER_PARAMETERS_FILE"]) as stream:
        assert json.load(stream) == told
    assert os.environ["TRAINMASTER_TRIAL"] == os.environ["CLOUD_ML_TRIAL_ID"]
    assert os.environ["TRAINMASTER_STUDY"] == "tiny"
    score = 1 - abs(options.lr - 0.1) - abs(options.layers - 3) / 10
    if int(os.environ["TRAINMASTER_TRIAL"]) % 2:
        for step in range(1, 4):
            print("step=%d score=%.6f" % (step, score * step / 3), flush=True)
    else:
        path = os.environ["CLOUD_ML_HP_METRIC_FILE"]
        os.makedirs(os.path.dirname(path), exist_ok=True)
        entry = {"score": "%.6f" % score, "checkpoint_path": "", "global_step": "3", "timestamp": time.time(),
                 "trial": os.environ["CLOUD_ML_TRIAL_ID"]}
        with open(path, "w") as stream:
            stream.write(json.dumps(entry, sort_keys=True) + "\\n")
    """
)

STUDY = """
name: tiny
template:
  command: [{python}, train.py]
  cpu: 100m
parameters:
  lr: {{type: float, min: 0.01, max: 1, scale: log}}
  layers: {{type: integer, min: 1, max: 6}}
constraints: ["layers * lr <= 3"]
metric: score
goal: maximize
algorithm: tpe
budget: {{trials: 6, parallel: 2}}
initial: [{{lr: 0.1, layers: 3}}]
seed: 5
"""


def test_six_trials_two_at_once_and_the_best_read_back(platform: Any, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    (tmp_path / "study.yaml").write_text(STUDY.format(python=sys.executable))
    made = platform.cli("study", "create", "study.yaml", "--code", "code", "--watch", cwd=tmp_path)
    assert made.returncode == 0, made.stdout + made.stderr
    assert made.stdout.count("succeeded score") == 6, made.stdout

    best = json.loads(platform.cli("study", "best", "tiny", "--json").stdout)
    (winner,) = best["trials"]
    assert (winner["number"], winner["parameters"]) == (1, {"lr": 0.1, "layers": 3})
    assert winner["result"] == {"score": 1.0}

    shown = json.loads(platform.cli("study", "show", "tiny", "--json").stdout)
    trials = shown["trial_list"]
    assert [trial["number"] for trial in trials] == [1, 2, 3, 4, 5, 6]
    assert all(trial["parameters"]["lr"] * trial["parameters"]["layers"] <= 3 for trial in trials)
    jobs = [platform.client.get_job(trial["job"]) for trial in trials]
    assert {job.state for job in jobs} == {"succeeded"}
    busy = sorted((moment, change) for job in jobs for moment, change in ((job.created_at, 1), (job.finished_at, -1)))
    at_once, most = 0, 0
    for _, change in busy:
        at_once += change
        most = max(most, at_once)
    assert most == 2
    listed = platform.cli("study", "list").stdout
    assert "6 of 6 ended" in listed


LEARNS_OR_NOT = textwrap.dedent(
    """
    import argparse, time
    from pathlib import Path
    import trainmaster_train as tm

    parser = argparse.ArgumentParser()
    parser.add_argument("--x", type=float)
    parser.add_argument("--enough", type=Path)
    options = parser.parse_args()
    step = 0
    while not options.enough.exists():
        step += 1
        tm.progress(step, score=options.x * (step if options.x > 0.5 else 1))
        time.sleep(0.2)
    """
)


def test_a_trial_that_is_stopped_early_makes_room_for_the_next_one(
    own_platform: Any, eventually: Any, tmp_path: Path
) -> None:
    client, enough, code = own_platform.client, tmp_path / "enough", tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(LEARNS_OR_NOT)
    # Two fill the machine: the next one has a place only when one of them is gone.
    command = [sys.executable, "train.py", "--enough", str(enough)]
    spec = {
        "name": "early",
        "template": {"command": command, "cpu": (os.cpu_count() or 1) / 2},
        "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
        "metric": "score",
        "goal": "maximize",
        "algorithm": "random",
        "budget": {"trials": 3, "parallel": 2},
        "stopping": {"rule": "patience", "patience": 3},
        "initial": [{"x": 0.9}, {"x": 0.1}, {"x": 0.8}],
    }
    study = client.create_study(spec, code=code).id

    def jobs() -> list[Any]:
        trials = sorted(client.list_trials(study), key=lambda trial: trial.number)
        return [client.get_job(trial.job) for trial in trials]

    eventually(lambda: [job.state for job in jobs()][2:] == ["running"], within_s=60, what="the third trial runs")
    first, stopped, after = jobs()
    assert (first.state, stopped.state) == ("running", "cancelled")
    (requested,) = (event for event in client.job(stopped.id).events() if event.kind == "job.cancel_requested")
    reported = {
        "asked to end after": stopped.started_at - requested.at,
        "ended after": requested.at - stopped.finished_at,
        "next submitted after": after.created_at - stopped.finished_at,
        "next runs after": after.started_at - stopped.finished_at,
    }
    print({what: round(abs(passed.total_seconds()), 2) for what, passed in reported.items()})
    assert requested.data == {"code": "stopped_early"}
    assert requested.at <= stopped.finished_at <= after.created_at <= after.started_at
    enough.touch()
    assert client.wait_for_study(study, timeout_s=120).state == "succeeded"
    ends = {trial.number: trial.state for trial in client.list_trials(study)}
    assert ends == {1: "succeeded", 2: "stopped", 3: "succeeded"}


def test_a_study_with_mistakes_is_refused_with_all_of_them(platform: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(
        "name: bad\ntemplate: {comand: x}\nparameters: {lr: {type: float, min: 0, max: 1, scale: log}}\n"
        "metric: score\ngoal: maximize\nbudget: {trials: 1}\n"
    )
    refused = platform.cli("study", "create", "bad.yaml", cwd=tmp_path)
    assert refused.returncode == 2
    assert "template.comand  unknown field" in refused.stderr
    assert "parameters.lr    has scale log and min 0" in refused.stderr
