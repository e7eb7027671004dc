from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import trainmaster_train as tm


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


def test_a_report_that_cannot_be_written_costs_one_warning_and_no_training(tmp_path: Path) -> None:
    env = {**os.environ, "TRAINMASTER_REPORT_FILE": str(tmp_path / "gone" / "report.jsonl")}
    script = "import trainmaster_train as tm\ntm.progress(1)\ntm.progress(2)"

    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)

    assert done.stderr.count("the training continues without reports") == 1


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


def test_metrics_of_any_name_histograms_images_and_texts_are_lines_that_the_platform_takes(file: Path) -> None:
    from trainmaster.wire.metrics import NewMetrics

    tm.log({"train/loss": np.float32(0.5)}, step=3)
    tm.log_histogram("weights", np.array([[0.0, 1.0], [1.0, float("nan")]]), step=3, bins=2)
    tm.log_image("seen", b"\x89PNG", step=3)
    tm.log_text("said", "hello", step=3)

    first, *others = lines(file)
    assert first == {"kind": "progress", "step": 3, "metrics": {"train/loss": 0.5}}
    objects = [NewMetrics.model_validate(line).objects[0] for line in others]
    assert [(one.name, one.kind, one.step) for one in objects] == [
        ("weights", "histogram", 3),
        ("seen", "image", 3),
        ("said", "text", 3),
    ]
    assert objects[0].data == {"edges": [0.0, 0.5, 1.0], "counts": [1, 2]}


def test_a_histogram_of_equal_or_of_no_numbers_is_no_mistake(file: Path) -> None:
    tm.log_histogram("same", [2.0, 2.0], step=1, bins=4)
    tm.log_histogram("none", [float("inf")], step=1)
    with pytest.raises(ValueError, match="bins"):
        tm.log_histogram("many", [1.0], step=1, bins=1000)

    (line,) = lines(file)
    assert line["objects"][0]["data"]["counts"] == [2, 0, 0, 0]  # type: ignore[index]
