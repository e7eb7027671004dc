"""An endpoint on the whole embedded platform: real models, a rolling update under load, a bad one taken back, a batch."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]


def _save_models(folder: Path) -> None:
    """Two versions of a model that tell which one answered."""
    from sklearn.linear_model import LinearRegression
    from skops import io

    for name, factor in (("one", 1.0), ("ten", 10.0)):
        (folder / name).mkdir(parents=True)
        model = LinearRegression(fit_intercept=False).fit([[1, 0], [0, 1]], [factor, factor])
        io.dump(model, folder / name / "model.skops")


def test_two_versions_a_rolling_update_under_load_and_the_way_back(platform: Any, tmp_path: Path) -> None:
    output = platform.home / "output" / "default"
    _save_models(output / "models")
    cli = platform.cli
    assert cli("endpoint", "create", "sums").returncode == 0
    unready = cli("endpoint", "predict", "sums", "[[1, 2]]")
    assert unready.returncode != 0
    assert "nothing is deployed to it" in unready.stderr
    made = cli("endpoint", "deploy", "sums", "output/default/models/one", "--wait", "--ready-timeout", "120")
    assert made.returncode == 0, made.stdout + made.stderr
    assert platform.client.predict("sums", [[1, 2], [3, 4.5]]) == pytest.approx([3.0, 7.5])

    stop, answers, lost = threading.Event(), [], []

    def ask() -> None:
        while not stop.is_set():
            try:
                answers.append(round(platform.client.predict("sums", [[1, 1]])[0]))
            except Exception as error:  # noqa: BLE001 (what the test is about)
                lost.append(error)
            time.sleep(0.02)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        updated = cli(
            "endpoint",
            "deploy",
            "sums",
            "output/default/models/ten",
            "--wait",
            "--reason",
            "ten times better",
        )
        assert updated.returncode == 0, updated.stdout + updated.stderr
        bad = cli("endpoint", "deploy", "sums", "output/default/models/ten", "--command", "exit 3", "--wait")
        assert bad.returncode == 1
        assert "Revision 3 never got ready, so revision 2 serves on" in bad.stdout
        assert platform.client.predict("sums", [[1, 1]]) == pytest.approx([20.0])
        back = cli("endpoint", "rollback", "sums")
        assert back.returncode == 0, back.stderr
        deadline = time.monotonic() + 60
        while platform.client.get_endpoint("sums").deployments[0].state != "ready" or answers[-1] != 2:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        stop.set()
        asker.join()
    assert lost == []
    assert set(answers) == {2, 20}

    (output / "questions").mkdir()
    (output / "questions" / "a.jsonl").write_text("".join(f"[{n}, 1]\n" for n in range(25)) + "nonsense\n")
    batch = cli(
        "batch-predict", "output/default/models/ten/model.skops", "output/default/questions", "--replicas", "2",
        "--shard-size", "10", "--output", "output/default/answers", "--wait",
    )  # fmt: skip
    assert batch.returncode == 0, batch.stdout + batch.stderr
    lines = [
        json.loads(line)
        for path in sorted((output / "answers").glob("predictions-*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert [line["prediction"] for line in lines] == pytest.approx([10.0 * (n + 1) for n in range(25)])
    (error,) = (
        json.loads(line)
        for path in (output / "answers").glob("errors-*.jsonl")
        for line in path.read_text().splitlines()
    )
    assert error["instance"] == "nonsense"
    cli("endpoint", "delete", "sums")
