"""A study's metric by each source that needs no other framework: real scripts, one small study each, side by side.

By MLflow's and hypertune's own packages: ``tests/frameworks/test_study_metric_sources.py``.
"""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]

# What each script trains: it gets better, and then worse again. Exact in 32 bits, which event files have.
COMMON = textwrap.dedent(
    """
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--units", type=int, required=True)
    units = parser.parse_args().units
    curve = [(1, units / 4), (2, units / 2), (3, units / 16), (4, units / 8)]
    """
)
LIBRARY = """
import trainmaster_train as tm
for step, value in curve:
    tm.progress(step, 4, score=value)
"""
EVENTS = """
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter("runs/mine") as writer:
    for step, value in curve:
        writer.add_scalar("eval/score", value, step)
"""
LINES = """
for step, value in curve:
    print(f"step={step} score={value}")
"""
PATTERN = """
for step, value in curve:
    print(f"[round {step:3d}] held-out score is {value}", end="" if step == 4 else "\\n")
"""
NONE = """
for step, value in curve:
    print(f"step={step} loss={value}")
print("the result: 0.5")
"""

UNREPORTED = (
    "it never reported the metric 'score'. What came: training library: nothing; hypertune's file: nothing; MLflow: "
    "nothing; "
    "TensorBoard's event files: nothing; log: 4 of 5 lines matched, with `loss`. "
    "Read were lines of the log that name a step or an epoch, like `score=0.1 step=3`. For lines like `score=0.1` "
    "alone write "
    '`metric_patterns: ["score={score}"]` in the template'
)


@dataclass(frozen=True)
class Source:
    """``values``: what trials of 4 and 8 units are worth, and which of them is better."""

    script: str
    values: tuple[float, float] = (2.0, 4.0)
    best: int = 2
    metric: str = "score"
    spec: dict[str, Any] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)


SOURCES = {
    "library": Source(LIBRARY),
    "library-least": Source(LIBRARY, (0.25, 0.5), 1, spec={"goal": "minimize"}),
    "events": Source(EVENTS, metric="eval/score"),
    "lines": Source(LINES, (0.5, 1.0), spec={"measurement": "last"}),
    "pattern": Source(PATTERN, template={"metric_patterns": ["[round {step}] held-out score is {score}"]}),
    "none": Source(NONE),
}


def test_two_trials_by_each_road_count_what_their_scripts_computed(platform: Any, tmp_path: Path) -> None:
    studies = {name: begin(platform, tmp_path / name, name, source) for name, source in SOURCES.items()}
    ended = {name: platform.client.wait_for_study(study, timeout_s=180) for name, study in studies.items()}
    for name, study in studies.items():
        source, trials = SOURCES[name], list(platform.client.list_trials(study))
        if name == "none":
            assert ended[name].state == "failed", ended[name].reason
            assert [(trial.state, trial.result, trial.reason) for trial in trials] == [("failed", None, UNREPORTED)] * 2
            assert "never reported the metric 'score'" in ended[name].reason
            continue
        assert ended[name].state == "succeeded", (name, ended[name].reason, trials)
        reported = [(trial.number, trial.state, trial.result) for trial in trials]
        wanted = [(number, "succeeded", {source.metric: value}) for number, value in enumerate(source.values, start=1)]
        assert reported == wanted, name
        assert [trial.number for trial in platform.client.get_study_best(study).trials] == [source.best], name
        curves = {curve.number: curve for curve in platform.client.get_study_curves(study).curves}
        for number, units in ((1, 4), (2, 8)):
            assert curves[number].steps == [1, 2, 3, 4], name
            assert curves[number].values == [units / 4, units / 2, units / 16, units / 8], name


def begin(platform: Any, folder: Path, name: str, source: Source) -> str:
    """Its id. The two points are given, so that each trial's value is known."""
    folder.mkdir()
    (folder / "train.py").write_text(COMMON + source.script)
    spec = {
        "name": f"source-{name}",
        "template": {"command": [sys.executable, "train.py"], "cpu": "100m", **source.template},
        "parameters": {"units": {"type": "integer", "min": 1, "max": 8}},
        "metric": source.metric,
        "goal": "maximize",
        "budget": {"trials": 2, "parallel": 2},
        "initial": [{"units": 4}, {"units": 8}],
        **source.spec,
    }
    study: str = platform.client.create_study(spec, code=folder).id
    return study
