"""Requirements of jobs in containers: a layer on the image, in a folder that all containers of a project share."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from executors.base import ENVIRONMENTS, ExitCause, MountOrder, Phase

# Layers are built while other tests run.
LIMIT_S = 240.0
WHEELS = "/mnt/wheels"


@pytest.fixture(
    params=[
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("kubernetes", marks=[pytest.mark.kubernetes, pytest.mark.xdist_group("cluster")]),
    ]
)
def bench(request):
    bench = request.getfixturevalue(f"make_{request.param}_bench")("layers")
    for name in ("wheels", "layers"):
        (bench.folder / name).mkdir()
        (bench.folder / name).chmod(0o777)
    with zipfile.ZipFile(bench.folder / "wheels" / "alpha-1.0-py3-none-any.whl", "w") as wheel:
        info = "alpha-1.0.dist-info"
        wheel.writestr("alpha.py", "VALUE = 42\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: alpha\nVersion: 1.0\nRequires-Dist: pip\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    (bench.folder / "wheels" / "alpha-1.0-py3-none-any.whl").chmod(0o644)
    return bench


def run(bench, command, *, layers: bool = True, **fields):
    mounts = [
        MountOrder(str(bench.output), "/data/output", False),
        MountOrder(str(bench.folder / "wheels"), WHEELS, True),
        *([MountOrder(str(bench.folder / "layers"), ENVIRONMENTS, False)] if layers else []),
    ]
    order = bench.order(command=command, mounts=tuple(mounts), **fields)
    bench.executor.create(order)
    return bench.ended(order, LIMIT_S), bench.log(order)


def requirements(*lines: str) -> dict[str, list[str]]:
    return {"requirements": ["--no-index", f"--find-links {WHEELS}", *lines]}


def test_a_layer_on_the_image_is_built_once(bench):
    code = "import alpha, pip, sys; print(alpha.VALUE, pip.__file__, sys.prefix)"
    ended, log = run(bench, ("python", "-c", code), environment=requirements("alpha"))
    assert ended.phase is Phase.SUCCEEDED, log
    value, pip, prefix = log.splitlines()[-1].split()
    assert value == "42"
    assert Path(prefix).parent == Path(ENVIRONMENTS)
    assert not pip.startswith(prefix), "the image has it"
    assert "Building the environment: 3 requirements" in log
    ended, log = run(bench, "python -c 'import alpha; print(alpha.VALUE)'", environment=requirements("alpha"), index=1)
    assert (ended.phase, log) == (Phase.SUCCEEDED, "42"), "the next container starts at once"


def test_what_cannot_be_installed_is_the_requirements_fault(bench):
    ended, log = run(bench, ("python", "-V"), layers=False, environment=requirements("no-such-package-anywhere"))
    assert ended.exit is not None
    assert ended.exit.cause is ExitCause.START_REFUSED, log
    assert "no-such-package-anywhere" in ended.exit.sentence
    assert "correct environment.requirements" in ended.exit.sentence


def test_an_interpreter_and_the_training_library_are_inside_the_image(bench):
    _, python = run(bench, "command -v python3")
    steps = (
        "python -m venv --without-pip /tmp/own",
        "/tmp/own/bin/python -c 'import trainmaster_train.horovod, sys; print(sys.prefix, \"has the library\")'",
        "touch ~/x && echo $HOME is writable",
    )
    ended, log = run(bench, " && ".join(steps), environment={"python": python}, index=1)
    assert ended.phase is Phase.SUCCEEDED, log
    assert "/tmp/own has the library" in log
    assert "is writable" in log
    ended, _ = run(bench, ("python", "-V"), environment={"venv": "/nowhere"}, index=2)
    assert "environment.venv: /nowhere is no virtual environment of the image" in ended.exit.sentence
