"""The environment of a job, as the command line and Python name it."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainmaster.client.compose import environment_of, read_requirements
from trainmaster.errors import LocalFileProblem
from trainmaster.spec import parse_spec


def test_names_and_relative_paths_are_looked_up_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python9"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert environment_of(python="python9") == {"python": str(program)}
    assert environment_of(python="./python9") == {"python": str(program)}
    assert environment_of(venv="envs/../venv") == {"venv": str(tmp_path / "venv")}
    assert environment_of(conda="vision") == {"conda": "vision"}
    assert environment_of() == {}
    with pytest.raises(LocalFileProblem, match="no program python8 on the PATH here; write its absolute path"):
        environment_of(python="python8")


def test_a_requirements_file_includes_others(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "requirements.txt").write_text(
        "numpy>=2  # arrays\n\n-r more/base.txt\nfoo==1 \\\n    --hash=sha256:ab\n"
    )
    (tmp_path / "more" / "base.txt").write_text("--requirement deep.txt\nbar\n")
    (tmp_path / "more" / "deep.txt").write_text("# nothing but\nbaz[x]~=1.0; python_version > '3.8'\n")
    lines = read_requirements(tmp_path / "requirements.txt")
    assert lines == ["numpy>=2", "baz[x]~=1.0; python_version > '3.8'", "bar", "foo==1 --hash=sha256:ab"]
    spec = parse_spec({"name": "a", "command": "b", "environment": {"requirements": lines}})
    assert spec.environment is not None
    assert list(spec.environment.requirements) == lines


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(LocalFileProblem, match=r"The requirements file .*nothing.txt cannot be read: No such file"):
        environment_of(requirements=tmp_path / "nothing.txt")
    (tmp_path / "a.txt").write_text("-r b.txt")
    (tmp_path / "b.txt").write_text("-r a.txt")
    with pytest.raises(LocalFileProblem, match=r"a.txt includes itself by -r"):
        read_requirements(tmp_path / "a.txt")
    (tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(LocalFileProblem, match=r"empty.txt has no requirements"):
        environment_of(requirements=tmp_path / "empty.txt")
