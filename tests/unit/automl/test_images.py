"""Trials on images: a network learns, what it saves is served from files of images, and what is broken is reported."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from trainmaster_automl import images
from trainmaster_automl.image_folders import read_images
from trainmaster_automl.options import DataProblem, TrialOptions
from trainmaster_serving.errors import BadInstances
from trainmaster_serving.image_model import as_pixels
from trainmaster_serving.models import load_model

POINT = {"family": "cnn", "width": 8, "blocks": 2, "lr": 0.01, "dropout": 0.0, "weight_decay": 1e-4, "augment": False}


def draw(folder: Path, each: int = 20, side: int = 16) -> Path:
    """Bright above, or bright below: with noise."""
    generator = np.random.default_rng(1)
    for name, rows in (("above", slice(0, side // 2)), ("below", slice(side // 2, side))):
        (folder / name).mkdir(parents=True)
        for index in range(each):
            pixels = generator.integers(0, 60, (side, side, 3))
            pixels[rows] += 150
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{index}.png")
    return folder


def options(folder: Path, **changes: Any) -> TrialOptions:
    values = {"kind": "images", "task": "classification", "metric": "accuracy", "parameters": POINT, **changes}
    return TrialOptions(data=str(folder), output=str(folder.parent / "output"), **values)


def test_a_table_names_the_images_and_their_classes(tmp_path: Path) -> None:
    folder = draw(tmp_path / "data")
    rows = [f"{number},{name}/{number}.png,{'up' if name == 'above' else 'down'}" for number in range(20)
            for name in ("above", "below")]  # fmt: skip
    (folder / "labels.csv").write_text("\n".join(["row,image,label", *rows, "20,above/0.png,"]) + "\n")
    found = read_images(str(folder), 0, 1000, 0, "labels.csv", "label")
    assert (found.classes, found.pixels.shape) == (["down", "up"], (40, 16, 16, 3))
    assert found.notes == ["1 of 41 images have no label; they are left out."]
    bright = found.pixels[:, :8].mean((1, 2, 3)) > found.pixels[:, 8:].mean((1, 2, 3))
    assert (bright == (found.labels == 1)).all()
    (folder / "labels.csv").write_text("row,label\n1,up\n2,down\n")
    with pytest.raises(DataProblem, match=r"No column of labels.csv has names of images"):
        read_images(str(folder), 0, 1000, 0, "labels.csv", "label")


def test_deep_pixels_and_what_is_transparent_are_seen_as_people_see_them() -> None:
    """16 bits became white all over, and a drawing on nothing black all over."""
    ramp = np.linspace(0, 65535, 64 * 64).reshape(64, 64)
    for image in (
        Image.fromarray(ramp.astype(np.uint16)),
        Image.fromarray(ramp.astype(np.int32)),
        # Fewer bits than the file has room for.
        Image.fromarray((ramp / 257).astype(np.int32)),
        Image.fromarray((ramp / 257).astype(np.uint16)),
        Image.fromarray((ramp / 65535 * 4095).astype(np.uint16)),
        Image.fromarray((ramp / 65535).astype(np.float32)),
        Image.fromarray((ramp / 257).astype(np.float32)),
        Image.fromarray((ramp / 257).astype(np.uint8)),
    ):
        pixels = as_pixels(image, 16)
        assert pixels.mean() == pytest.approx(127, abs=1), image.mode
        assert np.unique(pixels).size > 50, image.mode
    assert (
        as_pixels(Image.fromarray(np.full((16, 16), 2048, np.uint16)), 16).max() == 127
    )  # of 12 bits, not its own white
    drawn = np.zeros((64, 64, 4), np.uint8)
    drawn[16:48, 16:48, 3] = 255
    clear = Image.fromarray(drawn)
    named = clear.convert("P")  # its colors in a table, one of them transparent
    named.info["transparency"] = named.getpixel((0, 0))
    for image in (clear, clear.convert("LA")):
        pixels = as_pixels(image, 16)
        assert (pixels[0, 0].tolist(), pixels[8, 8].tolist()) == ([255] * 3, [0] * 3), image.mode
    for value, white in ((2048, 127), (4095, 255), (65535, 255)):  # of 12 and 16 bits, not each image's own white
        assert as_pixels(Image.fromarray(np.full((16, 16), value, np.uint16)), 16).max() == white
    drawn = np.zeros((64, 64, 4), np.uint8)
    drawn[16:48, 16:48, 3] = 255
    clear = Image.fromarray(drawn)
    named = clear.convert("P")  # its colors in a table, one of them transparent
    named.info["transparency"] = named.getpixel((0, 0))
    for image in (clear, clear.convert("LA")):
        pixels = as_pixels(image, 16)
        assert (pixels[0, 0].tolist(), pixels[8, 8].tolist()) == ([255] * 3, [0] * 3), image.mode
    assert as_pixels(named, 16).max() == 255


def test_a_network_learns_is_saved_and_answers_files_of_images(tmp_path: Path, capsys: Any) -> None:
    folder = draw(tmp_path / "data")
    (folder / "above" / "broken.png").write_bytes(b"no image")
    images.run(options(folder, is_final=True))
    printed = capsys.readouterr().out
    assert "1 of 41 images cannot be read, such as above/broken.png; they are left out." in printed
    assert "Tested on 8 rows that no trial has used." in printed
    model = load_model(str(tmp_path / "output" / "model"))
    file = base64.b64encode((folder / "above" / "0.png").read_bytes()).decode()
    gray = np.zeros((16, 16))
    gray[8:] = 200
    named, drawn = model.predict([{"b64": file}, gray.tolist()], {})
    assert (named["label"], drawn["label"]) == ("above", "below")
    assert sum(named["scores"].values()) == pytest.approx(1, abs=1e-4)
    report = json.loads((tmp_path / "output" / "model" / "automl.json").read_text())
    assert report["images"] == {"fit": 26, "validation": 6, "test": 8}
    assert "test_accuracy_baseline=0.5" in printed
    assert report["test"]["test_accuracy"] >= 0.75
    for bad, words in (
        ({"b64": "!!"}, "not a readable image"),
        ({"x": 1}, "base64"),
        ([[1, [2]]], "rows of pixels"),
        ([], "shape"),
    ):
        with pytest.raises(BadInstances, match=words):
            model.predict([bad], {})


def test_the_last_metrics_of_the_final_run_are_those_of_the_best_network(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = iter([0.2, 0.9, 0.4, 0.3, 0.3, 0.3, 0.3, 0.3])
    monkeypatch.setattr(images, "score", lambda *_: next(scored, 0.9))
    images.run(options(draw(tmp_path / "data"), is_final=True))
    values = [dict(pair.split("=") for pair in line.split(" ")) for line in capsys.readouterr().out.splitlines()
            if line.startswith("accuracy=")]  # fmt: skip
    assert [entry["accuracy"] for entry in values] == ["0.2", "0.9", "0.4", *["0.3"] * 5, "0.9"]
    assert (values[-1]["kept_epoch"], values[-1]["train_loss"], values[-1]["step"]) == (
        "2",
        values[1]["train_loss"],
        "9",
    )
    report = json.loads((tmp_path / "output" / "model" / "automl.json").read_text())
    assert report["validation"] == {"accuracy": 0.9}


def test_training_ends_before_the_time_limit_and_keeps_the_best_network(tmp_path: Path, capsys: Any) -> None:
    images.run(options(draw(tmp_path / "data"), seconds=1e-3, is_final=True))
    printed = capsys.readouterr().out
    assert "The time limit ends training after 1 of 40 epochs; the network of epoch 1 is used." in printed
    assert "step=2" not in printed
    assert (tmp_path / "output" / "model" / "model.pt").exists()


def test_the_baseline_says_the_commonest(tmp_path: Path, capsys: Any) -> None:
    images.run(options(draw(tmp_path / "data"), parameters={"family": "baseline"}))
    assert re.search(r"^accuracy=0\.5 seconds=\S+ step=1$", capsys.readouterr().out, re.MULTILINE)


def test_too_few_images_of_a_class_with_a_large_test_part_are_refused(tmp_path: Path) -> None:
    for name in "abcdefg":
        (tmp_path / "data" / name).mkdir(parents=True)
        for index in range(3):
            Image.new("RGB", (16, 16)).save(tmp_path / "data" / name / f"{index}.png")
    with pytest.raises(DataProblem, match=r"With 0\.5 of the images reserved .* --test-fraction .* more images\."):
        images.run(options(tmp_path / "data", test_fraction=0.5, parameters={"family": "baseline"}))
    images.run(options(tmp_path / "data", test_fraction=0.2, parameters={"family": "baseline"}))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # it is what weights are given as
def test_a_backbone_stays_as_it_is_and_a_layer_on_it_learns(tmp_path: Path, capsys: Any) -> None:
    backbone = torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten())
    weights = tmp_path / "backbone.pt"
    with torch.no_grad():
        torch.jit.save(torch.jit.trace(backbone, torch.zeros(1, 3, 16, 16)), weights)
    point = {"family": "transfer", "lr": 0.03, "dropout": 0.0, "weight_decay": 0.0}
    images.run(options(draw(tmp_path / "data"), parameters=point, weights=str(weights)))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("accuracy=")]
    assert max(float(line.split(" ")[0].removeprefix("accuracy=")) for line in lines) >= 0.75
    weights.write_bytes(b"nothing")
    with pytest.raises(DataProblem, match="not a readable TorchScript"):
        images.run(options(tmp_path / "data", parameters=point, weights=str(weights)))


def test_folders_that_are_no_classes_are_refused(tmp_path: Path) -> None:
    folder = draw(tmp_path / "one")
    for file in (folder / "below").iterdir():
        file.unlink()
    with pytest.raises(DataProblem, match="2 such folders are needed, 1 are there"):
        images.run(options(folder))
    few = draw(tmp_path / "few", each=5)
    with pytest.raises(DataProblem, match="There are 10 images; at least 20"):
        images.run(options(few))
    broken = draw(tmp_path / "broken")
    for file in list((broken / "below").iterdir())[:10]:
        file.write_bytes(b"")
    with pytest.raises(DataProblem, match="10 of 40 images cannot be read"):
        images.run(options(broken))
