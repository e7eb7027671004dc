"""Environments as users name them on the command line, on plain processes."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]


def put_wheel(folder: Path) -> None:
    info = "alpha-1.0.dist-info"
    with zipfile.ZipFile(folder / "alpha-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("alpha.py", "VALUE = 41\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: alpha\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_requirements_are_installed_once_and_shown_with_the_job(platform: Any, tmp_path: Path) -> None:
    put_wheel(tmp_path)
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("import alpha, os; print('rank', os.environ['RANK'], 'has', alpha.VALUE + 1)\n")
    (code / "requirements.txt").write_text(f"-r more.txt\n--no-index\n--find-links {tmp_path}\n")
    (code / "more.txt").write_text("alpha==1.0  # the answer\n")
    run = ("run", "--requirements", "requirements.txt", "--name", "answer", "--workers", "2")
    done = platform.cli(*run, "--", "python", "train.py", cwd=code, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 has 42" in done.stdout
    assert "rank 1 has 42" in done.stdout
    assert done.stdout.count("Building the environment: 3 requirements") == 1
    shown = platform.cli("show", "answer")
    assert f"3 requirements: alpha==1.0, --no-index, --find-links {tmp_path}" in " ".join(shown.stdout.split())
    again = platform.cli("clone", "answer", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["spec"]["environment"]["requirements"][0] == "alpha==1.0"
    followed = platform.cli("logs", "-f", json.loads(again.stdout)["id"])
    assert "rank 0 has 42" in followed.stdout
    assert "Building" not in followed.stdout


def test_requirements_that_do_not_exist_fail_the_job_once(platform: Any, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("--no-index\nno-such-package-anywhere\n")
    run = ("run", "--no-code", "--requirements", "requirements.txt", "--name", "nothing")
    done = platform.cli(*run, "--", "python", "-V", cwd=tmp_path, timeout=240)
    assert done.returncode == 1
    shown = json.loads(platform.cli("show", "nothing", "--json").stdout)
    assert "no-such-package-anywhere" in shown["exit"]["sentence"]
    assert (shown["exit"]["kind"], shown["attempt_count"]) == ("user_error", 1)


def test_an_interpreter_is_checked_at_submission_and_used(platform: Any, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    words = ("--", "python", "-c", "import sys; print(sys.prefix)")
    done = platform.cli("run", "--no-code", "--venv", "venv", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(tmp_path / "venv") in done.stdout
    done = platform.cli("run", "--no-code", "--venv", "nothing", *words, cwd=tmp_path)
    assert done.returncode != 0
    assert "environment.venv" in done.stderr
    assert "is not a virtual environment on the platform's machine" in " ".join(done.stderr.split())
