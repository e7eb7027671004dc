"""AutoML on the whole embedded platform: from a table to a registered model that answers raw rows."""

from __future__ import annotations

import base64
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
    arguments = [
        "automl",
        "--data",
        "data/buyers.csv",
        "--target",
        "bought",
        "--family",
        "baseline",
        "--family",
        "linear",
    ]
    made = platform.cli(
        *arguments,
        "--trials",
        "3",
        "--budget",
        "10m",
        "--folds",
        "2",
        "--cpu",
        "500m",
        "--name",
        "shop",
        "--watch",
        "--json",
        timeout=500,
    )
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


def draw_images(folder: Path) -> None:
    """Bright above, or bright below."""
    image = pytest.importorskip("PIL.Image")
    chance = random.Random(5)
    for name, bright in (("above", range(8)), ("below", range(8, 16))):
        (folder / name).mkdir(parents=True)
        for place in range(16):
            drawn = image.new("L", (16, 16))
            drawn.putdata(
                [chance.randint(0, 60) + (150 if row in bright else 0) for row in range(16) for _ in range(16)]
            )
            drawn.save(folder / name / f"{place}.png")


def test_the_best_model_for_a_folder_of_images_is_tested_registered_and_answers_files(platform: Any) -> None:
    folder = platform.home / "data" / "photos"
    draw_images(folder)
    made = platform.cli(
        "automl",
        "--data",
        "data/photos",
        "--target",
        "label",
        "--kind",
        "images",
        "--trials",
        "2",
        "--parallel",
        "2",
        "--budget",
        "10m",
        "--family",
        "baseline",
        "--family",
        "cnn",
        "--image-size",
        "16",
        "--cpu",
        "500m",
        "--name",
        "photos",
        "--watch",
        "--json",
        timeout=500,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    found = json.loads(made.stdout.splitlines()[-1])
    assert (found["state"], found["task"], found["winner"]["version_state"]) == ("succeeded", "classification", "ready")
    assert {row["family"] for row in found["leaderboard"]} == {"baseline", "cnn"}
    assert (found["leaderboard"][0]["family"], found["test"]["rows"]) == ("cnn", 6)
    platform.client.create_endpoint("photos")
    deployed = platform.cli("endpoint", "deploy", "photos", "photos@1", "--cpu", "500m", "--wait", timeout=300)
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    files = [base64.b64encode((folder / name / "0.png").read_bytes()).decode() for name in ("above", "below")]
    answers = platform.client.predict("photos", [{"b64": file} for file in files])
    assert [one["label"] for one in answers] == ["above", "below"]
    platform.client.delete_endpoint("photos")


def test_a_wrong_target_is_refused_before_anything_is_tried(platform: Any) -> None:
    write_table(platform.home / "data" / "again.csv")
    refused = platform.cli("automl", "--data", "data/again.csv", "--target", "bougth", "--budget", "1m")
    assert refused.returncode == 2
    assert "Did you mean 'bought'? The columns are city, age, bought." in refused.stderr
