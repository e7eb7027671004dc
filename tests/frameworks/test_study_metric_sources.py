"""A study's metric by MLflow's and hypertune's own packages, unmodified; other sources:
``tests/e2e/studies/test_study_metric_sources.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("frameworks"),
    pytest.mark.timeout(600),
]

# It gets better, and then worse again.
COMMON = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--units", type=int, required=True)
units = parser.parse_args().units
curve = [(1, units / 4), (2, units / 2), (3, units / 16), (4, units / 8)]
"""
SCRIPTS = {
    "mlflow": """
import mlflow

mlflow.log_params({"units": units})
for step, value in curve:
    mlflow.log_metrics({"score": value, "loss": -value}, step=step)
""",
    "vertex": """
import hypertune

reporter = hypertune.HyperTune()
for step, value in curve:
    reporter.report_hyperparameter_tuning_metric("score", value, global_step=step)
""",
}
MISNAMED = """
import mlflow

for step, value in curve:
    mlflow.log_metric("acc", value, step=step)
"""


def test_studies_by_mlflow_and_hypertune_side_by_side(platform: Any, python_of: Any, tmp_path: Path) -> None:
    runs: list[tuple[str, str, dict[str, Any], tuple[float, float], int]] = [
        ("mlflow", SCRIPTS["mlflow"], {}, (2.0, 4.0), 2),
        ("vertex", SCRIPTS["vertex"], {}, (2.0, 4.0), 2),
        ("vertex", SCRIPTS["vertex"], {"goal": "minimize"}, (0.25, 0.5), 1),
        ("vertex", SCRIPTS["vertex"], {"measurement": "last"}, (0.5, 1.0), 2),
    ]
    client = platform.client
    ids = [
        begin(client, tmp_path / f"{number}", python_of(environment), script, more)
        for number, (environment, script, more, _, _) in enumerate(runs)
    ]
    unnamed = begin(client, tmp_path / "misnamed", python_of("mlflow"), MISNAMED, {"budget": {"trials": 1}})
    for study, (environment, _, more, values, best) in zip(ids, runs, strict=True):
        ended = client.wait_for_study(study, timeout_s=300)
        assert ended.state == "succeeded", (environment, more, ended.reason)
        reported = [(trial.number, trial.state, trial.result) for trial in client.list_trials(study)]
        assert reported == [(n, "succeeded", {"score": value}) for n, value in enumerate(values, start=1)], environment
        assert [trial.number for trial in client.get_study_best(study).trials] == [best]
        curves = {curve.number: (curve.steps, curve.values) for curve in client.get_study_curves(study).curves}
        assert curves == {
            n: ([1, 2, 3, 4], [units / 4, units / 2, units / 16, units / 8]) for n, units in ((1, 4), (2, 8))
        }
    assert client.wait_for_study(unnamed, timeout_s=300).state == "failed"
    (trial,) = client.list_trials(unnamed)
    assert "never reported the metric 'score'" in trial.reason
    assert "MLflow: `acc`" in trial.reason


def begin(client: Any, folder: Path, python: str, script: str, more: dict[str, Any]) -> str:
    """Its id. The points are given, so that each trial's value is known."""
    folder.mkdir()
    (folder / "train.py").write_text(COMMON + script)
    spec = {
        "name": f"source-{folder.name}",
        "template": {"command": [python, "train.py"], "cpu": "100m"},
        "parameters": {"units": {"type": "integer", "min": 1, "max": 8}},
        "metric": "score",
        "goal": "maximize",
        "budget": {"trials": 2, "parallel": 2},
        "initial": [{"units": 4}, {"units": 8}],
        **more,
    }
    study: str = client.create_study(spec, code=folder).id
    return study
