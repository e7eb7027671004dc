"""Event files with the bytes that TensorFlow, Keras and torch really write, read by the runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from trainmaster_runtime.metrics.eventfiles import EventFileReader, FileClaims

from tests.frameworks.conftest import SCRIPTS

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("frameworks"), pytest.mark.timeout(300)]


def written_by(python: str, library: str, folder: Path) -> dict[tuple[str, str], list[tuple[int, Any]]]:
    """(name, kind) -> (step, data) of what the library's writers wrote."""
    output = folder / "output"
    output.mkdir()
    claims = FileClaims(str(folder / "claims"), "1/worker-0")
    files = EventFileReader(str(output), None, claims, pytest.fail, now=0.0, began=0.0)
    command = [python, str(SCRIPTS / "event_files.py"), str(output / "run"), library]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True, timeout=240)
    found = defaultdict(list)
    for name, value in files.collect(1.0, is_last=True):
        found[name, value.kind].append((value.step, value.data))
    files.close()
    return found


def demand_common(found: dict[tuple[str, str], list[tuple[int, Any]]], words: str) -> None:
    assert found["loss", "scalar"] == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3))]
    assert [sum(data["counts"]) for _, data in found["weights", "histogram"]] == [100.0] * 3
    assert [data[:4] for _, data in found["picture", "image"]] == [b"\x89PNG"] * 3
    assert len(found[words, "text"]) == 3


def test_what_tensorflow_and_keras_write_is_read(python_of: Any, tmp_path: Path) -> None:
    found = written_by(python_of("tf215"), "tf", tmp_path)
    demand_common(found, "words")
    assert found["words", "text"][0] == (0, "hello\nyou")
    assert found["half", "scalar"] == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert [step for step, _ in found["train/epoch_loss", "scalar"]] == [0, 1]
    assert [step for step, _ in found["validation/epoch_loss", "scalar"]] == [0, 1]
    assert any(kind == "histogram" and "kernel" in name for name, kind in found)


def test_what_torch_writes_is_read(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tensorboard")
    found = written_by(sys.executable, "torch", tmp_path)
    demand_common(found, "words/text_summary")
    assert found["new", "scalar"] == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert sum(name.startswith("both") for name, _ in found) == 2
