"""`trainmaster image build` on a real engine, and the image run as a job's container."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("images")]


def test_a_folder_becomes_an_image_that_a_job_can_run(suite: str, run: Any, tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "cache").mkdir(parents=True)
    (code / "train.py").write_text(
        "import os, sys\nprint('trained', sys.argv[1], os.getuid(), os.listdir('cache') if os.path.isdir('cache') "
        "else None)\n"
    )
    (code / "cache/x").write_text("x")
    (code / ".trainmasterignore").write_text("cache/\n")
    tag = f"{suite}/mnist:1"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trainmaster.cli.main", "image", "build", str(code), "--tag", tag),
            *("--network", "host", "--command", "python train.py --fast"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Built {tag} (")
    config = subprocess.run(
        ["docker", "image", "inspect", "-f", "{{json .Config.Cmd}} {{.Config.User}}", tag],
        capture_output=True,
        text=True,
        check=True,
    )
    assert config.stdout.strip() == '["python","train.py","--fast"] 1000:1000'
    box = run(tag, None, image_command=("python", "train.py", "--fast"), uid=None)
    assert (box.code, box.log) == (0, "trained --fast 1000 None\n")


def test_a_build_that_fails_says_so(suite: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    words = ["image", "build", str(tmp_path), "-t", f"{suite}/bad", "--command", "x", "--base", f"{suite}/not-there"]
    done = subprocess.run(
        [sys.executable, "-m", "trainmaster.cli.main", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "The build failed; the engine's lines above say why." in done.stderr
    assert "Traceback" not in done.stderr
