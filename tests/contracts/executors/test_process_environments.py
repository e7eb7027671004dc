"""The Python of a command, and its requirements, on real processes and with the real uv."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from core import worker_packages
from executors.base import ExitCause, Phase
from tests.orders import bare_order

WHO = "import sys; print(sys.executable, sys.prefix)"
# Building layers while other tests run takes a while.
LIMIT_S = 120.0


@pytest.fixture
def bench(make_process_bench, tmp_path, monkeypatch):
    """The bench on a machine whose package index is the folder ``wheels`` alone."""
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return make_process_bench("platform/bench", hidden=[tmp_path / "platform"])


def put_wheel(folder: Path, name: str, version: str, code: str, *, needs: str = "", script: str = "") -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", code)
        requires = f"Requires-Dist: {needs}\n" if needs else ""
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        if script:
            wheel.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{script}\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def run(bench, command, **fields):
    order = bench.order(command=command, **fields)
    bench.executor.create(order)
    return bench.ended(order, LIMIT_S), bench.log(order)


def layers(bench):
    return sorted(path.stem for path in (bench.run_dir / "environments").glob("*.json"))


@pytest.fixture
def venv(tmp_path):
    folder = tmp_path / "their venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)], check=True)
    return folder


def test_a_virtual_environment_is_the_commands_python(bench, venv):
    ended, log = run(bench, ("python", "-c", WHO), environment={"venv": str(venv)})
    assert (ended.phase, log) == (Phase.SUCCEEDED, f"{venv}/bin/python {venv}")
    _, log = run(bench, "echo $VIRTUAL_ENV; command -v python3", environment={"venv": str(venv)}, role="chief")
    assert log.splitlines() == [str(venv), f"{venv}/bin/python3"]


def test_python_and_python3_are_an_interpreter_of_another_name(bench, venv, tmp_path):
    folder = tmp_path / "interpreters"
    folder.mkdir()
    own = folder / "python3.99"
    own.write_text(f"#!/bin/sh\nexec '{venv}/bin/python' \"$@\"\n")
    own.chmod(0o755)
    (folder / "python").symlink_to("/bin/false")  # another version under the plain name
    for number, name in enumerate(("python", "python3", "python3.99")):
        ended, log = run(bench, (name, "-c", WHO), environment={"python": str(own)}, index=number)
        assert (ended.phase, log.split()[-2:]) == (Phase.SUCCEEDED, str(venv).split()), name


def test_a_conda_environment_is_found_by_condas_own_list(bench, tmp_path, monkeypatch):
    prefix = tmp_path / "anywhere" / "vision"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(prefix)], check=True)
    conda = tmp_path / "conda"
    conda.write_text(f'#!/bin/sh\n[ "$*" = \'env list --json\' ] && echo \'{{"envs": ["{prefix}"]}}\'\n')
    conda.chmod(0o755)
    monkeypatch.setenv("CONDA_EXE", str(conda))
    ended, log = run(bench, "echo $CONDA_PREFIX $CONDA_DEFAULT_ENV; command -v python", environment={"conda": "vision"})
    assert (ended.phase, log.splitlines()) == (Phase.SUCCEEDED, [f"{prefix} vision", f"{prefix}/bin/python"])
    ended, _ = run(bench, ("python", "-V"), environment={"conda": "sound"}, role="chief")
    assert ended.exit.cause is ExitCause.START_REFUSED
    assert "has no conda environment sound with a Python (it has vision" in ended.exit.sentence


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"python": "/nowhere/python"}, "environment.python: /nowhere/python is no program of this machine"),
        ({"venv": "/usr"}, "environment.venv: /usr is no virtual environment of this machine"),
        ({"conda": "no-such-name"}, "environment.conda: this machine has no conda environment no-such-name"),
    ],
)
def test_a_python_that_is_not_there_is_refused(bench, environment, sentence):
    ended, log = run(bench, ("python", "-V"), environment=environment)
    assert ended.exit.cause is ExitCause.START_REFUSED
    assert ended.exit.sentence.startswith(sentence)
    assert sentence in log


def test_the_platforms_own_folder_cannot_be_named(bench, tmp_path):
    folder = tmp_path / "platform" / "secrets"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)], check=True)
    ended, _ = run(bench, ("python", "-V"), environment={"venv": str(folder)})
    assert "lies in the platform's own folder" in ended.exit.sentence


def test_requirements_are_a_layer_that_jobs_share(bench, tmp_path):
    put_wheel(tmp_path / "wheels", "alpha", "1.0", "VALUE = 1\n", needs="numpy", script="greet = alpha:print")
    code = "import alpha, numpy, sys; print(alpha.__file__, numpy.__file__, sys.prefix)"
    environment = {"requirements": ["alpha"]}
    ended, log = run(bench, ("python", "-c", code), environment=environment)
    assert ended.phase is Phase.SUCCEEDED, log
    (digest,) = layers(bench)
    layer = bench.run_dir / "environments" / digest
    *_, line = log.splitlines()
    alpha, numpy, prefix = line.split()
    assert (Path(alpha).is_relative_to(layer), prefix) == (True, str(layer))
    assert not Path(numpy).is_relative_to(layer), "the base has it already"
    assert "Building the environment: 1 requirement" in log
    assert "alpha==1.0" in log
    # The next job with the same requirements starts at once, and sees the layer without being able to change it.
    ended, log = run(
        bench,
        f"command -v greet; command -v pytest; python -c 'import pytest'; touch {layer}/x || echo protected",
        environment=environment,
        role="chief",
    )
    assert "Building" not in log
    assert log.splitlines()[:2] == [f"{layer}/bin/greet", f"{layer}/bin/pytest"], "the base's commands know the layer"
    if "namespace" in ended.facts["isolation"]:
        assert log.endswith("protected")


def test_a_newer_version_than_the_bases_is_in_the_layer_alone(bench, tmp_path):
    put_wheel(tmp_path / "wheels", "pluggy", "99.0", "VALUE = 99\n")
    import pluggy

    ended, log = run(
        bench, ("python", "-c", "import pluggy; print(pluggy.VALUE)"), environment={"requirements": ["pluggy>=99"]}
    )
    assert (ended.phase, log.splitlines()[-1]) == (Phase.SUCCEEDED, "99")
    assert Path(pluggy.__file__).exists(), "the base stays as it is"


def test_replicas_that_start_together_build_once(bench, tmp_path):
    put_wheel(tmp_path / "wheels", "alpha", "1.0", "VALUE = 1\n")
    orders = [
        bench.order(command=("python", "-c", "import alpha"), index=index, environment={"requirements": ["alpha"]})
        for index in range(3)
    ]
    starts = [threading.Thread(target=bench.executor.create, args=(order,)) for order in orders]
    for thread in starts:
        thread.start()
    for thread in starts:
        thread.join()
    assert [bench.ended(order, LIMIT_S).phase for order in orders] == [Phase.SUCCEEDED] * 3
    assert sum("Building the environment: 1" in bench.log(order) for order in orders) == 1


def test_a_venv_with_requirements_stays_below_them(bench, venv, tmp_path):
    put_wheel(tmp_path / "wheels", "alpha", "1.0", "VALUE = 1\n")
    site = next(venv.glob("lib/python*/site-packages"))
    (site / "beta.py").write_text("VALUE = 2\n")
    ended, log = run(
        bench,
        (
            "python",
            "-c",
            "import alpha, beta, importlib.util as u; print(alpha.VALUE, beta.VALUE, u.find_spec('numpy'))",
        ),
        environment={"venv": str(venv), "requirements": ["alpha"]},
    )
    assert (ended.phase, log.splitlines()[-1]) == (Phase.SUCCEEDED, "1 2 None")


def test_without_uv_the_bases_pip_installs(bench, tmp_path, monkeypatch):
    monkeypatch.setattr("executors.process.executor.build_settings", lambda store: {"store": str(store)})
    put_wheel(tmp_path / "wheels", "alpha", "1.0", "VALUE = 1\n", needs="numpy")
    folder = tmp_path / "with pip"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    put_wheel(tmp_path / "wheels", "numpy", "1.0", "VALUE = 0\n")
    ended, log = run(
        bench,
        ("python", "-c", "import alpha, numpy; print(alpha.VALUE, numpy.VALUE)"),
        environment={"venv": str(folder), "requirements": ["alpha"]},
        env={"PATH": "/usr/bin:/bin", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")},
    )
    assert (ended.phase, log.splitlines()[-1]) == (Phase.SUCCEEDED, "1 0")


def test_what_cannot_be_installed_is_the_requirements_fault(bench):
    ended, log = run(bench, ("python", "-V"), environment={"requirements": ["no-such-package-anywhere"]})
    assert ended.exit.cause is ExitCause.START_REFUSED
    assert "no-such-package-anywhere was not found" in ended.exit.sentence
    assert "correct environment.requirements" in ended.exit.sentence
    assert "we can conclude that" in log
    assert layers(bench) == []


def test_an_index_that_does_not_answer_is_transient(bench, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    ended, _ = run(
        bench,
        ("python", "-V"),
        environment={"requirements": ["no-such-package-anywhere"]},
        env={"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"},
    )
    assert ended.exit.cause is ExitCause.START_FAILED
    assert "could not be downloaded" in ended.exit.sentence


def test_a_build_does_not_see_the_platforms_folder(bench, tmp_path):
    if "namespace" not in bench.run(command=("true",)).facts.get("isolation", ""):
        pytest.skip("this kernel allows no mount namespace")
    (tmp_path / "platform" / "secret").write_text("secret")
    sdist = tmp_path / "spy-1.0"
    sdist.mkdir()
    (sdist / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: spy\nVersion: 1.0\n")
    (sdist / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "spy"\nversion = "1.0"\n'
    )
    secret = tmp_path / "platform" / "secret"
    (sdist / "backend.py").write_text(
        f"import os\nraise SystemExit('secret is ' + ('shown' if os.path.exists({str(secret)!r}) else 'hidden'))\n"
    )
    shutil.make_archive(str(tmp_path / "wheels" / "spy-1.0"), "gztar", tmp_path, "spy-1.0")
    _, log = run(bench, ("python", "-V"), environment={"requirements": ["spy"]})
    assert "secret is hidden" in log


def test_layers_that_were_not_used_for_a_month_are_removed(bench, tmp_path):
    for name in ("alpha", "beta", "gamma"):
        put_wheel(tmp_path / "wheels", name, "1.0", "VALUE = 1\n")
    run(bench, ("python", "-c", "import alpha"), environment={"requirements": ["alpha"]})
    (old,) = layers(bench)
    running = bench.order(command=("sleep", "60"), role="chief", environment={"requirements": ["beta"]})
    bench.executor.create(running)
    bench.until(running, lambda seen: seen.phase is Phase.RUNNING, LIMIT_S)
    store = bench.run_dir / "environments"
    for path in store.glob("*.json"):
        os.utime(path, (1, 1))
    used = {*layers(bench)} - {old}
    run(bench, ("python", "-c", "import gamma"), environment={"requirements": ["gamma"]}, role="evaluator")
    assert old not in layers(bench)
    assert not (store / old).exists()
    assert used < {*layers(bench)}, "a running job's layer stays"


def test_a_job_has_the_home_of_its_project_and_not_the_platforms(bench):
    order = replace(
        bench.order(command='[ "$HOME" != "$OLD" ] && echo "$HOME" && touch ~/kept', env={"OLD": os.environ["HOME"]}),
        project="vision",
    )
    bench.executor.create(order)
    assert bench.ended(order).phase is Phase.SUCCEEDED
    home = bench.run_dir / "homes" / "vision"
    assert bench.log(order) == str(home)
    assert (home / "kept").exists()
    other = replace(bench.order(command="ls -A ~ ..", role="chief"), project="sound")
    bench.executor.create(other)
    assert bench.ended(other).phase is Phase.SUCCEEDED
    assert "kept" not in bench.log(other)


def test_the_training_library_is_there_in_every_python_behind_its_own(bench, venv):
    code = "import trainmaster_train as t, trainmaster_train.horovod; print(t.__file__)"
    ended, log = run(bench, ("python", "-c", code), environment={"venv": str(venv)})
    assert (ended.phase, log.endswith("/trainmaster_train/__init__.py")) == (Phase.SUCCEEDED, True), log
    ended, log = run(
        bench, ("python", "-c", "import trainmaster_runtime"), environment={"venv": str(venv)}, role="chief"
    )
    assert "No module named 'trainmaster_runtime'" in log, "only the library is shown"
    (next(venv.glob("lib/python*/site-packages")) / "trainmaster_train.py").write_text("print('their own')\n")
    _, log = run(bench, ("python", "-c", "import trainmaster_train"), environment={"venv": str(venv)}, role="ps")
    assert log == "their own"
    # Without the hook it is on the path itself.
    without_hook = {"TRAINMASTER_EXIT_HOOK": "0"}
    ended, log = run(bench, ("/usr/bin/env", "python3", "-c", code), env=without_hook, role="evaluator")
    assert (ended.phase, log.endswith("/trainmaster_train/__init__.py")) == (Phase.SUCCEEDED, True), log


def test_an_installed_library_is_shown_by_a_link(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "trainmaster_train"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr(worker_packages, "CHECKOUT", tmp_path / "nowhere")
    monkeypatch.setattr(
        worker_packages, "find_spec", lambda name: spec_from_file_location(name, package / "__init__.py")
    )
    for _ in range(2):
        folder = worker_packages.library_folder(tmp_path / "links")
        assert folder == tmp_path / "links"
        assert [path.name for path in folder.iterdir()] == ["trainmaster_train"]
    assert (folder / "trainmaster_train").resolve() == package
    monkeypatch.setattr(worker_packages, "find_spec", lambda _: None)
    assert worker_packages.library_folder(tmp_path / "links") is None


def test_the_index_of_pips_settings_is_uvs(tmp_path):
    from trainmaster_runtime.layer import settings_of_uv

    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://a/simple\nextra-index-url =\n    https://b\n    https://c\n")
    found = settings_of_uv({"PIP_FIND_LINKS": "/x /y", "UV_NO_INDEX": ""}, ["/nowhere", str(file)])
    assert found == {
        "UV_DEFAULT_INDEX": "https://a/simple",
        "UV_INDEX": "https://b https://c",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/x,/y",
    }
    assert settings_of_uv({"PIP_INDEX_URL": "https://a", "UV_DEFAULT_INDEX": "https://own"}, []) == {}


def test_an_order_without_an_environment_names_none():
    assert bare_order().environment == {}
