"""AutoML on the whole embedded platform: from a table to a registered model that answers raw rows."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e"), pytest.mark.timeout(900)]


def write_table(path: Path) -> None:
    chance = random.Random(4)
    lines = ["city,age,bought"]
    for _ in range(80):
        city, age = chance.choice(["Paris", "Rome"]), chance.randint(18, 80)
        lines.append(f"{city},{age},{'yes' if city == 'Paris' else 'no'}")
    path.write_text("\n".join(lines) + "\n")


def test_the_best_model_for_a_table_is_tested_registered_and_answers_raw_rows(platform: Any) -> None:
    write_table(platform.home / "data" / "buyers.csv")
    asked = ["automl", "--data", "data/buyers.csv", "--target", "bought", "--family", "baseline", "--family", "linear"]
    made = platform.cli(
        *asked, "--trials", "3", "--budget", "10m", "--folds", "2", "--cpu", "500m", "--name", "shop", "--watch", "--json",
        timeout=500,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    found = json.loads(made.stdout.splitlines()[-1])
    assert (found["state"], found["task"], found["metric"]) == ("succeeded", "classification", "accuracy")
    assert len(found["leaderboard"]) == 3
    best = found["leaderboard"][0]
    assert (best["family"], best["score"]) == ("linear", 1.0)
    assert "baseline" in {row["family"] for row in found["leaderboard"]}
    winner = found["winner"]
    assert (winner["trial"], winner["model"], winner["version"], winner["version_state"]) == (
        best["trial"],
        "shop",
        1,
        "ready",
    )
    assert (found["test"]["rows"], found["test"]["score"]) == (16, 1.0)
    version = platform.client.get_version("default", "shop", 1)
    assert version.lineage.study == "shop"
    assert version.lineage.parameters["family"] == "linear"
    assert version.metrics["test_accuracy"] == 1.0

    platform.client.create_endpoint("shop")
    deployed = platform.cli("endpoint", "deploy", "shop", "shop@1", "--cpu", "500m", "--wait", timeout=300)
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    rows = [{"city": "Rome", "age": 30}, {"city": "Paris", "age": None}]
    assert platform.client.predict("shop", rows) == ["no", "yes"]
    platform.client.delete_endpoint("shop")


def test_a_wrong_target_is_refused_before_anything_is_tried(platform: Any) -> None:
    write_table(platform.home / "data" / "again.csv")
    refused = platform.cli("automl", "--data", "data/again.csv", "--target", "bougth", "--budget", "1m")
    assert refused.returncode == 2
    assert "Did you mean 'bought'? The columns are city, age, bought." in refused.stderr
