from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import trainmaster_train as tm
from trainmaster_train import report


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINMASTER_REPORT_FILE", str(tmp_path / "report.jsonl"))
    return tmp_path / "report.jsonl"


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_progress_is_one_line(file: Path) -> None:
    tm.progress(3, 100, epoch=1, loss=0.1)
    tm.progress(4)

    assert lines(file) == [
        {"kind": "progress", "step": 3, "steps": 100, "epoch": 1, "metrics": {"loss": 0.1}},
        {"kind": "progress", "step": 4},
    ]


def test_outside_the_platform_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRAINMASTER_REPORT_FILE", raising=False)
    monkeypatch.chdir(tmp_path)

    tm.progress(1, loss=0.5)

    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_scalars_of_numpy_are_numbers(file: Path) -> None:
    tm.progress(1, loss=np.float32(0.5), right=np.int64(3), is_best=np.bool_(True))

    assert lines(file)[0]["metrics"] == {"loss": 0.5, "right": 3, "is_best": True}


def test_numbers_that_json_has_not_are_sent_as_texts(file: Path) -> None:
    tm.progress(1, a=float("nan"), b=float("inf"), c=float("-inf"))

    assert lines(file)[0]["metrics"] == {"a": "NaN", "b": "Infinity", "c": "-Infinity"}


def test_a_metric_that_is_no_number_is_named(file: Path) -> None:
    with pytest.raises(TypeError, match="metric 'loss'"):
        tm.progress(1, loss="much")


def test_a_report_that_cannot_be_written_costs_one_warning_and_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "_has_warned", False)
    monkeypatch.setenv("TRAINMASTER_REPORT_FILE", str(tmp_path / "gone" / "report.jsonl"))

    tm.progress(1)
    tm.progress(2)

    assert capsys.readouterr().err.count("the training goes on without reports") == 1


WRITER = """
import sys
import trainmaster_train as tm
for step in range(200):
    tm.progress(step, who=int(sys.argv[1]), padding=10**200)
"""


def test_lines_of_several_processes_never_mix(file: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(tm.__file__).parent.parent)}
    command = [sys.executable, "-S", "-c", WRITER]
    writers = [subprocess.Popen([*command, str(who)], env=environment) for who in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]

    found = [(line["metrics"]["who"], line["step"]) for line in map(json.loads, file.read_text().splitlines())]
    assert sorted(found) == [(who, step) for who in range(2) for step in range(200)]
