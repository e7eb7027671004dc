"""The sitecustomize hook, in every Python at hand."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HOOKS = Path(__file__).parents[3] / "worker_images/runtime/trainmaster_runtime/hooks"
PYTHONS = sorted(
    {
        str(Path(found).resolve())
        for found in [
            sys.executable,
            *(shutil.which(f"python3.{minor}") for minor in range(6, 15)),
            *map(str, Path.home().glob(".pyenv/versions/3.*/bin/python3")),
        ]
        if found and "shims" not in found
    }
)


@pytest.fixture(params=PYTHONS, ids=lambda path: "-".join(Path(path).parts[-4:]))
def run(request, tmp_path):
    """Runs code under the hook; returns what was noted and the process."""
    notes = tmp_path / "notes"
    notes.touch()
    script = tmp_path / "main.py"

    def go(code, *arguments, **env):
        script.write_text(code)
        variables = {"PYTHONPATH": str(HOOKS), "TRAINMASTER_EXIT_NOTES": str(notes), "PATH": "/usr/bin:/bin", **env}
        done = subprocess.run(
            [request.param, *(arguments or (str(script),))], env=variables, capture_output=True, text=True, check=False
        )
        return [line.split()[1] for line in notes.read_text().splitlines()], done

    return go


@pytest.mark.parametrize(
    ("code", "noted", "exit_code"),
    [
        ("pass", "0", 0),
        ("import sys; sys.exit()", "0", 0),
        ("import sys; sys.exit(3)", "3", 3),
        ("import sys; sys.exit(True)", "1", 1),
        ("import sys; sys.exit('message')", "1", 1),
        ("exit(4)", "4", 4),
        ("raise ValueError", "1", 1),
        ("raise SystemExit(5)", "?", 5),
        ("def main():\n    import sys\n    sys.exit(6)\nmain()", "6", 6),
        ("import sys\ntry:\n    sys.exit(7)\nexcept BaseException:\n    pass", "0", 0),
        ("import sys\ntry:\n    sys.exit(8)\nfinally:\n    print('x')", "8", 8),
        ("import sys, threading\nt = threading.Thread(target=sys.exit, args=(9,))\nt.start()\nt.join()", "0", 0),
        ("import sys, _thread, time\n_thread.start_new_thread(sys.exit, (9,))\ntime.sleep(0.2)", "0", 0),
    ],
)
def test_the_code_is_noted_as_the_process_exits_with_it(run, code, noted, exit_code):
    notes, done = run(code)
    assert done.returncode == exit_code, done.stderr
    assert notes == [noted]


def test_a_module_run_by_name_is_noted(run, tmp_path):
    notes, done = run("import sys; sys.exit(2)", "-c", "import runpy; runpy.run_path('%s')" % (tmp_path / "main.py"))
    assert (notes, done.returncode) == (["2"], 2)


def test_forked_children_note_nothing(run):
    notes, done = run("import os, sys\nif os.fork() == 0:\n    sys.exit(3)\nos.wait()")
    assert (notes, done.returncode) == (["0"], 0)


def test_it_is_silent_and_leaves_no_trace_in_the_path(run):
    _, done = run("import sys; print([p for p in sys.path if 'hooks' in p], sys.exit.__name__)")
    assert done.stdout == "[] exit\n"
    assert done.stderr == ""


def test_an_error_in_the_users_own_sitecustomize_is_shown(run, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("import not_there_at_all")
    _, done = run("pass", PYTHONPATH=f"{HOOKS}:{tmp_path / 'own'}")
    assert "not_there_at_all" in done.stderr


def test_without_a_place_for_notes_nothing_is_changed(run):
    notes, done = run("import sys; print(sys.exit.__module__)", TRAINMASTER_EXIT_NOTES="")
    assert (notes, done.stdout) == ([], "sys\n")


@pytest.fixture
def fake_jax(tmp_path):
    """A package that is asked as JAX is; it prints what it was told."""
    package = tmp_path / "jax"
    package.mkdir()
    (package / "__init__.py").write_text("from jax import distributed\n")
    (package / "distributed.py").write_text(
        "def initialize(coordinator_address=None, num_processes=None, process_id=None, local_device_ids=None, "
        "**more):\n"
        "    print(coordinator_address, num_processes, process_id, local_device_ids, sorted(more))\n"
    )
    return {"JAX_COORDINATOR_ADDRESS": "h:2222", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}


@pytest.mark.parametrize(
    ("call", "reported"),
    [
        ("jax.distributed.initialize()", "h:2222 4 3 None []"),
        ("jax.distributed.initialize(local_device_ids=[1])", "h:2222 4 3 [1] []"),
        ("jax.distributed.initialize('other:1', 2, 0)", "other:1 2 0 None []"),
        ("jax.distributed.initialize(num_processes=2, process_id=1)", "None 2 1 None []"),
        (
            "jax.distributed.initialize(cluster_detection_method='mpi4py')",
            "None None None None ['cluster_detection_method']",
        ),
    ],
)
def test_jax_gets_the_gang_unless_the_program_names_one(run, fake_jax, call, reported):
    noted, done = run(f"import jax\n{call}", **fake_jax)
    assert (done.stdout.strip(), done.stderr, noted) == (reported, "", ["0"])


def test_a_program_without_jax_imports_and_ends_as_ever(run):
    noted, done = run(
        "import json, sys\ntry:\n    import jax\nexcept ImportError:\n    print(sorted(p for p in sys.path if 'hooks' "
        "in p))",
        JAX_NUM_PROCESSES="2",
        JAX_PROCESS_ID="0",
    )
    assert (done.stdout.strip(), done.stderr, noted) == ("[]", "", ["0"])
