"""image build, image push: what is told to the engine, by an engine of a few lines."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from trainmaster.errors import InvalidRequest
from trainmaster.images import ImagePlan, check_reference, render_dockerfile, write_context
from typer.testing import Result

Invoke = Callable[..., Result]

ENGINE = """#!/bin/sh
echo "$*" >> {folder}/calls
case "$1" in
    version) [ ! -e {folder}/away ] || {{ echo "Cannot connect to the daemon" >&2; exit 1; }} ;;
    build) cat > {folder}/context; echo "Step 1"; [ ! -e {folder}/broken ] || {{ echo "no such base"; exit 1; }} ;;
    push) [ ! -e {folder}/broken ] || {{ echo "denied: who are you"; exit 1; }} ;;
    image) echo "sha256:abc 2097152" ;;
esac
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "engine"
    folder.mkdir()
    program = folder / "docker"
    program.write_text(ENGINE.format(folder=folder))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "data").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "data/big.bin").write_text("x")
    (folder / "requirements.txt").write_text("numpy\n")
    (folder / ".trainmasterignore").write_text("data/\n")
    return folder


def calls(engine: Path) -> list[str]:
    return (engine / "calls").read_text().splitlines()


def test_what_seldom_changes_comes_first() -> None:
    plan = ImagePlan(
        base="python:3.11-slim",
        requirements=b"numpy\n",
        packages=("git", "libgl1"),
        command="python train.py --note 'a b'",
        arguments=("PIP_INDEX_URL",),
    )
    assert render_dockerfile(plan) == (
        "FROM python:3.11-slim\n"
        "ARG PIP_INDEX_URL\n"
        "USER root\n"
        "RUN apt-get update && apt-get install -y --no-install-recommends git libgl1 && rm -rf /var/lib/apt/lists/*\n"
        "COPY requirements.txt /tmp/requirements.txt\n"
        "RUN python -m pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore"
        " -r /tmp/requirements.txt\n"
        "COPY --chown=1000:1000 code/ /data/\n"
        "WORKDIR /data\n"
        "USER 1000:1000\n"
        "ENTRYPOINT []\n"
        'CMD ["python", "train.py", "--note", "a b"]\n'
    )


def test_without_packages_and_command_the_base_keeps_its_own() -> None:
    assert render_dockerfile(ImagePlan(user="0:0")) == (
        "FROM python:3.11-slim\nUSER root\nCOPY --chown=0:0 code/ /data/\nWORKDIR /data\nUSER 0:0\n"
    )


@pytest.mark.parametrize(
    "plan",
    [
        ImagePlan(base="python\nRUN evil"),
        ImagePlan(packages=("git; rm -rf /",)),
        ImagePlan(arguments=("A B",)),
        ImagePlan(user="1000\nRUN evil"),
        ImagePlan(command="python 'train.py"),
    ],
)
def test_nothing_slips_into_the_dockerfile(plan: ImagePlan) -> None:
    with pytest.raises(InvalidRequest):
        render_dockerfile(plan)


@pytest.mark.parametrize(
    "name", ["mnist", "mnist:1", "localhost:5000/team/mnist:v1.2", "reg.example.com/a/b_c@sha256:" + "a" * 64]
)
def test_names_of_images(name: str) -> None:
    check_reference(name, field="tag")


@pytest.mark.parametrize("name", ["", "Mnist", "mnist:", "a b", "-x", "mnist:1 --privileged"])
def test_what_is_no_name_is_reported(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is not an image name"):
        check_reference(name, field="tag")


def test_the_context_is_the_same_for_the_same_folder_and_leaves_out_what_is_ignored(code: Path) -> None:
    first, second = io.BytesIO(), io.BytesIO()
    plan = ImagePlan(requirements=b"numpy\n")
    assert write_context(plan, code, first) == 4
    (code / "train.py").touch()
    write_context(plan, code, second)
    assert first.getvalue() == second.getvalue()
    first.seek(0)
    with tarfile.open(fileobj=first) as tar:
        modes = {member.name: member.mode for member in tar}
    assert modes == {
        "Dockerfile": 0o644,
        "requirements.txt": 0o644,
        "code/.trainmasterignore": 0o644,
        "code/requirements.txt": 0o644,
        "code/run.sh": 0o755,
        "code/train.py": 0o644,
    }


def test_a_folder_becomes_an_image_and_is_pushed(cli: Invoke, engine: Path, code: Path) -> None:
    done = cli(
        *("image", "build", str(code), "-t", "reg.example.com/mnist:1", "--base", "python:3.12-slim", "--apt", "git"),
        *("--build-arg", "PIP_INDEX_URL=http://mirror", "--network", "host", "--command", "python train.py", "--push"),
    )
    assert done.exit_code == 0, done.output
    assert calls(engine) == [
        "version",
        "build --tag reg.example.com/mnist:1 --build-arg=PIP_INDEX_URL=http://mirror --network=host -",
        "push reg.example.com/mnist:1",
        "image inspect --format {{.Id}} {{.Size}} reg.example.com/mnist:1",
    ]
    assert "Pushed reg.example.com/mnist:1 (2.0 MiB). Use it with `image: reg.example.com/mnist:1`." in done.stdout
    with tarfile.open(engine / "context") as tar:
        dockerfile = tar.extractfile("Dockerfile")
        assert dockerfile is not None
        text = dockerfile.read().decode()
    assert text.startswith("FROM python:3.12-slim\nARG PIP_INDEX_URL\n")
    assert "requirements.txt" in text


def test_json_tells_the_image(cli: Invoke, engine: Path, code: Path) -> None:
    done = cli("image", "build", str(code), "-t", "mnist", "--no-requirements", "--json")
    assert json.loads(done.stdout) == {"image": "mnist", "id": "sha256:abc", "size_bytes": 2097152}


def test_without_an_engine_it_says_what_to_do(
    cli: Invoke, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = cli("image", "build", str(code), "-t", "mnist")
    assert done.exit_code == 3
    assert "neither `docker` nor `podman` is installed" in done.stderr


def test_an_engine_that_is_down_is_reported(cli: Invoke, engine: Path, code: Path) -> None:
    (engine / "away").touch()
    done = cli("image", "build", str(code), "-t", "mnist")
    assert done.exit_code == 3
    assert "Cannot connect to the daemon" in done.stderr


def test_a_failed_build_and_a_refused_push_are_reported(cli: Invoke, engine: Path, code: Path) -> None:
    (engine / "broken").touch()
    built = cli("image", "build", str(code), "-t", "mnist", "--quiet")
    assert (built.exit_code, "the engine says: no such base" in built.stderr) == (1, True)
    pushed = cli("image", "push", "reg.example.com/mnist", "-q")
    assert pushed.exit_code == 1
    assert "denied: who are you" in pushed.stderr
    assert "`docker login reg.example.com`" in pushed.stderr


def test_a_requirements_file_that_is_not_there_is_reported(cli: Invoke, engine: Path, code: Path) -> None:
    done = cli("image", "build", str(code), "-t", "mnist", "-r", "none.txt")
    assert done.exit_code == 2
    assert "there is no file none.txt" in done.stderr
