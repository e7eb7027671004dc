from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process outside of the platform; the folder is its output."""
    for name in list(os.environ):
        if name.startswith(("TRAINMASTER_", "TF_CONFIG", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRAINMASTER_OUTPUT_DIR", str(tmp_path / "output"))
    monkeypatch.setenv("TRAINMASTER_REPORT_FILE", str(tmp_path / "report.jsonl"))
    return tmp_path / "output"
