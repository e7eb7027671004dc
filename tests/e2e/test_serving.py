"""An endpoint on the whole embedded platform: real models, a rolling update under load, a bad one taken back, a
batch.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.serving_story import Load

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e"), pytest.mark.timeout(1500)]


def _save_models(folder: Path) -> None:
    """Two versions of a model that tell which one answered."""
    from sklearn.linear_model import LinearRegression
    from skops import io

    for name, factor in (("one", 1.0), ("ten", 10.0)):
        (folder / name).mkdir(parents=True)
        model = LinearRegression(fit_intercept=False).fit([[1, 0], [0, 1]], [factor, factor])
        io.dump(model, folder / name / "model.skops")


def test_two_versions_a_rolling_update_under_load_and_the_way_back(platform: Any, eventually: Any) -> None:
    output = platform.home / "output" / "default"
    _save_models(output / "models")
    cli = partial(platform.cli, timeout=600)  # some of them wait for models to be read
    assert cli("endpoint", "create", "sums").returncode == 0
    unready = cli("endpoint", "predict", "sums", "[[1, 2]]")
    assert unready.returncode != 0
    assert "nothing is deployed to it" in unready.stderr
    made = cli("endpoint", "deploy", "sums", "output/default/models/one", "--wait", "--ready-timeout", "400")
    assert made.returncode == 0, made.stdout + made.stderr
    assert platform.client.predict("sums", [[1, 2], [3, 4.5]]) == pytest.approx([3.0, 7.5])

    with Load(platform.client, "sums", askers=4).going_on() as load:
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
        eventually(
            lambda: platform.client.get_endpoint("sums").deployments[0].state == "ready" and load.answers[-1] == 2,
            within_s=300,
            what="the first one serves again",
        )
    assert load.lost == []
    assert set(load.answers) == {2, 20}

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
