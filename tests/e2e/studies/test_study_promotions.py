"""Trials that go on from checkpoints of others, as real processes: each checkpoint says through whose hands it went."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]

# Knows nothing of populations and halvings: it goes on from what it is given, and reports the step of the whole
# training.
SCRIPT = textwrap.dedent(
    """
    import argparse, json, os, pathlib, shutil, time

    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--pause", type=float, default=0)
    args = parser.parse_args()
    trial = int(os.environ["TRAINMASTER_TRIAL"])
    folder = pathlib.Path(os.environ["TRAINMASTER_OUTPUT_DIR"], "checkpoints")
    source = os.environ.get("TRAINMASTER_RESUME_FROM")
    if source:
        state = json.loads(pathlib.Path(source, "state.json").read_text())
        print("goes on at step", state["step"], flush=True)
    else:
        state = {"step": 0, "score": 0.0, "lineage": []}
    state["lineage"].append({"trial": trial, "from": state["step"], "rate": args.rate})
    while state["step"] < args.epochs:
        # The worse, the slower: when one that is to give way is looked at, the others have come as far.
        time.sleep(args.pause if args.rate > 0.01 else 2 * args.pause)
        state["step"] += 1
        state["score"] += args.rate
        print("step=%(step)d score=%(score).6f" % state, flush=True)
        whole = folder / ("step-%08d" % state["step"])
        aside = folder / (whole.name + ".tmp")
        aside.mkdir(parents=True, exist_ok=True)
        (aside / "state.json").write_text(json.dumps(state))
        (aside / ".complete").touch()
        aside.rename(whole)
        for old in sorted(folder.glob("step-*[0-9]"))[:-10]:
            shutil.rmtree(old)
    """
)


@pytest.fixture(scope="module")
def studies(platform: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A population and a halving, run side by side to their ends."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "train.py").write_text(SCRIPT)
    template = {"cpu": "100m", "grace": {"stop": 2}}
    every = {"metric": "score", "goal": "maximize", "seed": 3}
    bred = {
        **every,
        "name": "bred",
        "template": {**template, "command": [sys.executable, "train.py", "--epochs=32", "--pause=0.35"]},
        "parameters": {"rate": {"type": "float", "min": 0.001, "max": 1, "scale": "log"}},
        "population": {"interval": 4, "resample": 0},
        "budget": {"trials": 6, "parallel": 4},
        "initial": [{"rate": 0.002}, {"rate": 0.02}, {"rate": 0.04}, {"rate": 0.4}],
    }
    halved = {
        **every,
        "name": "halved",
        "template": {**template, "command": [sys.executable, "train.py"]},
        "parameters": {"rate": {"type": "float", "min": 0.01, "max": 1}},
        "fidelity": {"parameter": "epochs", "min": 2, "max": 8, "reduction": 2},
        "budget": {"trials": 7},  # one after the other, so that it is certain who is promoted
        "initial": [{"rate": rate} for rate in (0.2, 0.1, 0.15, 0.4)],
    }
    client = platform.client
    made: dict[str, Any] = {str(spec["name"]): client.create_study(spec, code=folder).id for spec in (bred, halved)}
    for study in made.values():
        ended = client.wait_for_study(study, timeout_s=180)
        assert ended.state == "succeeded", ended.reason
    return made


def newest_state(platform: Any, trial: Any) -> dict[str, Any]:
    """What its newest checkpoint holds; empty for a trial that was stopped before its first one."""
    job = platform.client.job(trial.job)
    if trial.state == "stopped" and not any(entry.path == "checkpoints" for entry in job.files()):
        return {}
    newest = max(entry.path for entry in job.files("checkpoints"))
    state: dict[str, Any] = json.loads(job.read_file(f"{newest}/state.json"))
    return state


def test_heirs_of_a_population_go_on_where_their_parents_were(platform: Any, studies: dict[str, Any]) -> None:
    made = studies["bred"]
    trials = {trial.number: trial for trial in platform.client.list_trials(made)}
    # Where its parent had trained to the end meanwhile, a trial has nothing left to train, and fails.
    heirs = [trial for trial in trials.values() if trial.parent is not None and trial.state != "failed"]
    assert heirs, trials
    # The worst of the first four gave its place to an heir of the best.
    assert trials[1].state == "stopped", trials[1]
    assert "gives its place to a trial that goes on from a better one" in trials[1].reason
    assert heirs[0].parent == 4
    for heir in heirs:
        parent, state = trials[heir.parent], newest_state(platform, heir)
        if not state:
            continue
        *before, own = state["lineage"]
        # The whole line stands in its checkpoint: it was the parent's own, and each began where the one before it was.
        assert [one["trial"] for one in before] == line_of(trials, parent), (heir, state)
        assert (own["trial"], own["rate"]) == (heir.number, heir.parameters["rate"])
        begun = [one["from"] for one in state["lineage"]]
        assert begun[0] == 0 < begun[1]
        assert begun == sorted(begun)
        ratio = heir.parameters["rate"] / parent.parameters["rate"]
        assert math.isclose(ratio, 1.2) or math.isclose(ratio, 1 / 1.2) or heir.parameters["rate"] == 1, ratio
        if heir.state == "succeeded":
            rates = zip(state["lineage"], [*begun[1:], 32], strict=True)
            worth = sum(one["rate"] * (end - one["from"]) for one, end in rates)
            assert heir.result == {"score": pytest.approx(worth, abs=1e-5)}
        shown = platform.client.get_job(heir.job)
        assert shown.cloned_from == parent.job
    curve = next(c for c in platform.client.get_study_curves(made).curves if c.number == heirs[0].number)
    assert curve.steps[0] > 1


def line_of(trials: dict[int, Any], trial: Any) -> list[int]:
    """Numbers from the first ancestor to ``trial``."""
    return [*(line_of(trials, trials[trial.parent]) if trial.parent is not None else []), trial.number]


def test_promoted_trials_of_a_halving_go_on_from_their_own_checkpoint(platform: Any, studies: dict[str, Any]) -> None:
    trials = {trial.number: trial for trial in platform.client.list_trials(studies["halved"])}
    reported = [(trial.parent, trial.parameters["rate"], trial.parameters["epochs"]) for trial in trials.values()]
    # The better one of two goes on, and the best of those two.
    assert reported == [
        (None, 0.2, 2),
        (None, 0.1, 2),
        (1, 0.2, 4),
        (None, 0.15, 2),
        (None, 0.4, 2),
        (5, 0.4, 4),
        (6, 0.4, 8),
    ]
    for trial in trials.values():
        rate, epochs = trial.parameters["rate"], trial.parameters["epochs"]
        state, line = newest_state(platform, trial), line_of(trials, trial)
        assert state["step"] == epochs
        assert [(one["trial"], one["from"]) for one in state["lineage"]] == list(zip(line, [0, 2, 4], strict=False))
        assert trial.result == {"score": pytest.approx(rate * epochs, abs=1e-5)}
