"""dev.py: what each verb installs, and how it is left."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with a ``.venv`` of its own that holds a Python."""
    spec = importlib.util.spec_from_file_location("dev_under_test", ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    monkeypatch.setattr(module, "VENV", tmp_path)
    monkeypatch.setattr(module, "PYTHON", tmp_path / "bin" / "python")
    return module


def test_only_what_a_verb_needs_is_installed_and_nothing_twice(dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(" ".join(command))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(dev.subprocess, "run", run)
    monkeypatch.setattr(dev, "LOCKS", ROOT / "requirements")
    assert dev.need() == 0
    requirements, platform = commands
    assert "--require-hashes" in requirements
    assert requirements.endswith("tensorboard.lock")
    assert "platform.lock" in requirements
    assert platform.endswith("-e ./.")
    assert dev.need("train") == 0
    assert commands[2].endswith("train.lock")
    assert "torch" in commands[3]
    assert len(commands) == 5
    assert dev.need("train") == 0
    assert dev.need() == 0
    assert len(commands) == 5
    # Installed extras stay.
    assert dev.need("lint") == 0
    assert commands[5].count(".lock") == 4


def test_a_changed_lock_installs_again(dev: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(dev.subprocess, "run", run)
    monkeypatch.setattr(dev, "LOCKS", tmp_path)
    (tmp_path / "platform.lock").write_text("a==1 --hash=sha256:00\n")
    assert dev.need() == 0
    (tmp_path / "platform.lock").write_text("a==2 --hash=sha256:00\n")
    assert dev.need() == 0
    assert len(commands) == 4


def test_ctrl_c_is_no_traceback(dev: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(dev, "demo", interrupted)
    assert dev.main(["demo"]) == 130
    assert capsys.readouterr().err == "\nStopped.\n"


def test_an_environment_of_a_framework_is_made_once_and_again_when_its_versions_change(
    dev: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        if command[1:3] == ["-m", "venv"]:
            Path(command[3]).mkdir(parents=True)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(dev.subprocess, "run", run)
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.setattr(dev, "FRAMEWORKS_FOLDER", tmp_path / "frameworks")
    assert dev.frameworks(["mxnet"]) == 0
    assert [command[-1] for command in commands] == [str(tmp_path / "frameworks" / "mxnet"), "numpy<1.24"]
    assert dev.frameworks(["mxnet"]) == 0
    assert len(commands) == 2
    monkeypatch.setitem(dev.FRAMEWORKS, "mxnet", (("mxnet==1.9.2",),))
    assert dev.frameworks(["mxnet"]) == 0
    assert commands[-1][-1] == "mxnet==1.9.2"
    assert dev.frameworks(["caffe"]) == 2


def test_an_environment_that_could_not_be_made_is_not_left_half_made(
    dev: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        if command[1:3] == ["-m", "venv"]:
            Path(command[3]).mkdir(parents=True)
        return subprocess.CompletedProcess(command, 1 if "pip" in command else 0)

    monkeypatch.setattr(dev.subprocess, "run", run)
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.setattr(dev, "FRAMEWORKS_FOLDER", tmp_path / "frameworks")
    assert dev.frameworks(["jax"]) == 2
    assert not (tmp_path / "frameworks" / "jax").exists()


def test_both_serving_images_are_built_by_name_each_over_its_own_framework(
    dev: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    monkeypatch.setattr(dev, "run", lambda *command: built.append(" ".join(map(str, command))) or 0)
    assert dev.images(["serving-tensorflow", "serving"]) == 0
    torch, tensorflow = built
    assert "-t trainmaster/serving:cpu " in torch
    assert "BASE=" not in torch
    assert "-t trainmaster/serving:tensorflow " in tensorflow
    assert "BASE=trainmaster/tensorflow:cpu" in tensorflow
    assert all(one.count("worker_images/serving/Dockerfile") == 1 for one in built)
    names = list(dev.IMAGES)
    assert names.index("tensorflow") < names.index("serving-tensorflow")  # it stands on it
    assert dev.images(["serving-jax"]) == 2
