"""CIFAR-10 under UAI Train's contract, on one node and on two, with small files in the standard format."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("torch")

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(("spec", "world"), [("job.yaml", 1), ("distributed.yaml", 2)])
def test_it_trains_with_uais_five_arguments(platform: Any, spec: str, world: int) -> None:
    folder = platform.home / "data" / "cifar10"
    maker = EXAMPLES / "data" / "make_cifar10.py"
    subprocess.run([sys.executable, str(maker), str(folder), "--images", "500"], check=True)
    written = yaml.safe_load((EXAMPLES / "cifar10" / spec).read_text())
    command = [sys.executable, *written["command"][1:]]  # the tests' own interpreter, whatever the platform's PATH says
    job = platform.client.submit(
        {**written, "command": command, "args": ["--epochs", "3", "--batch_size", "50"]}, code=EXAMPLES / "cifar10"
    )

    detail = job.wait(timeout_s=240)

    log = "\n".join(line.text for line in job.logs())
    assert detail.state == "succeeded", f"{detail.exit}\n{log}"
    result = json.loads(job.read_file("result.json"))
    assert result["accuracy"] >= 0.9, log
    assert (result["images"], result["world"]) == (500, world)
    # --log_dir and --output_dir are the job's output.
    epochs = [json.loads(line)["epoch"] for line in job.read_file("train.jsonl").splitlines()]
    assert epochs == [1, 2, 3]
    assert max(found.step for found in job.checkpoints()) == 30
