"""Plain processes as users of their own: each project's files, environments, and what projects share."""

from __future__ import annotations

import os
import sys
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from core.job_users import why_not
from executors.base import ExitCause, MountOrder, Phase
from tests.contracts.executors.test_process_environments import put_wheel
from tests.contracts.executors.warm.bench import FORKED, LIMIT_S, WarmBench, clear

ALICE, BOB, SHARED = 271_001, 271_002, 271_000
pytestmark = pytest.mark.skipif(why_not(SHARED, BOB) is not None, reason="needs root with the right to mount")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Open to other users: pytest closes its own folder whenever it is started."""
    with tempfile.TemporaryDirectory(prefix="trainmaster-test-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.fixture
def bench(make_process_bench, tmp_path, monkeypatch):
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "root/platform").mkdir(mode=0o700, parents=True)
    (tmp_path / "root").chmod(0o700)  # as the home of root, which has the platform in it
    return make_process_bench("root/platform/bench", hidden=[tmp_path / "root/platform"])


def start(bench, command, uid=ALICE, **fields):
    own = MountOrder(str(bench.output), "/data/output", False, owner=(uid, uid))
    mounts = (own, *fields.pop("mounts", ()))
    order = replace(bench.order(command=command, mounts=mounts, **fields), uid=uid, project=f"project-{uid}")
    bench.executor.create(order)
    return order


def run(bench, command, uid=ALICE, **fields):
    order = start(bench, command, uid, **fields)
    return bench.ended(order, LIMIT_S), bench.log(order)


def owner(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return (status.st_uid, status.st_gid)


def test_what_an_earlier_version_left_becomes_the_projects(bench):
    """A restart goes on from a checkpoint of root's, and appends to the same log."""
    (bench.output / "checkpoints").mkdir()
    (bench.output / "checkpoints" / "step-1").write_text("1\n")
    ended, log = run(
        bench,
        "id -u; id -G; cat output/checkpoints/step-1; mv output/checkpoints/step-1 output/checkpoints/step-2; "
        "echo 2 > output/checkpoints/step-3; touch code $HOME/cache; umask; stat -c %u:%a /data",
    )
    assert (ended.phase, log.split()) == (Phase.SUCCEEDED, [*map(str, [ALICE, ALICE]), "1", "0007", f"{ALICE}:770"])
    for path in (bench.output, *bench.output.rglob("*"), bench.run_dir / f"homes/project-{ALICE}/cache"):
        assert owner(path) == (ALICE, ALICE), path
    assert bench.output.stat().st_mode & 0o2000
    assert (bench.output / "checkpoints/step-3").stat().st_mode & 0o777 == 0o660
    assert f"user id {ALICE}" in ended.facts["isolation"]


def test_the_state_of_a_replica_is_roots(bench):
    order = start(bench, "sleep 1")
    bench.ended(order)
    for path in bench.state(order).iterdir():
        assert owner(path) == ((ALICE, ALICE) if path.name == "work" else (0, 0)), path
        assert path.stat().st_mode & 0o007 == 0 or path.name == "work", path


def test_a_link_in_the_way_of_the_log_is_not_followed_to_where_only_root_writes(bench, tmp_path):
    target = tmp_path / "roots"
    target.mkdir(mode=0o755)
    ended, _ = run(bench, f"rm -rf output/.trainmaster; ln -s {target} output/.trainmaster")
    assert ended.phase is Phase.SUCCEEDED
    ended, _ = run(bench, "true", index=1)
    assert ended.exit.cause is ExitCause.START_REFUSED
    assert list(target.iterdir()) == []


def test_another_projects_folder_needs_its_group(bench, tmp_path):
    other = tmp_path / "other"
    other.mkdir(mode=0o2770)
    os.chown(other, BOB, BOB)
    other.chmod(0o2770)
    write = "echo alice > /data/granted/a; cat /data/granted/a; stat -c %g:%a /data/granted/a"
    mounts = (MountOrder(str(other), "/data/granted", False),)
    _, log = run(bench, write, mounts=mounts)
    assert "Permission denied" in log
    _, log = run(bench, write, mounts=mounts, groups=(BOB,), index=1)
    assert log.split() == ["alice", f"{BOB}:660"]
    _, log = run(bench, "cat /data/granted/a; echo b > /data/granted/b || echo refused", groups=(BOB,), index=2,
                 mounts=(replace(mounts[0], read_only=True),))  # fmt: skip
    assert "alice" in log
    assert "refused" in log


def test_projects_share_a_folder_of_no_project(bench, tmp_path):
    data = tmp_path / "root/platform/data"
    data.mkdir()
    (data / "old").write_text("")
    mounts = (MountOrder(str(data), "/data/shared", False, owner=(0, SHARED)),)
    for number, uid in enumerate((ALICE, BOB)):
        bench.output = tmp_path / f"root/platform/output-{uid}"
        bench.output.mkdir()
        ended, log = run(
            bench,
            "mkdir -p /data/shared/set; echo $(id -u) >> /data/shared/set/names; echo x >> /data/shared/old",
            uid, mounts=mounts, groups=(SHARED,), index=number,
        )  # fmt: skip
        assert ended.phase is Phase.SUCCEEDED, log
    assert (data / "set/names").read_text().split() == [str(ALICE), str(BOB)]


def test_requirements_are_built_as_the_project_and_shared_with_no_other(bench, tmp_path):
    put_wheel(tmp_path / "wheels", "alpha", "1.0", "here = __file__")
    code = "import alpha, os; print(alpha.here); open(alpha.here, 'a')"
    for number, uid in enumerate((ALICE, BOB)):
        bench.output = tmp_path / f"root/platform/output-{uid}"
        bench.output.mkdir()
        environment = {"requirements": ["alpha"]}
        ended, log = run(bench, ("python", "-c", code), uid, environment=environment, index=number)
        assert ended.exit.exit_code == 1, log
        assert "Read-only file system" in log
        store = bench.run_dir / "environments" / str(uid)
        assert f"{store}/built/" in log
        assert owner(store) == (0, 0)
        assert {owner(path)[0] for path in store.glob("built/*/lib/*/site-packages/alpha.py")} == {uid}


def test_of_a_closed_folder_the_environment_alone_is_shown(bench, tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    (folder / "secret").write_text("mine")
    venv.create(folder / "env", symlinks=True)
    show = ("python", "-c", "import sys; print(sys.prefix); open(sys.prefix + '/../secret')")
    ended, log = run(bench, show, environment={"venv": str(folder / "env")})
    assert log.splitlines()[0] == str(folder / "env")
    assert f"FileNotFoundError: [Errno 2] No such file or directory: '{folder}/env/../secret'" in log
    tool = folder / "bin/python"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    ended, _ = run(bench, show, environment={"python": str(tool)}, index=1)
    assert ended.exit.cause is ExitCause.START_REFUSED
    assert "such as /opt" in ended.exit.sentence


def test_without_a_view_nothing_is_started(make_process_bench):
    bench = make_process_bench("mapped", view="mapped")
    ended, _ = run(bench, "touch output/started")
    assert ended.exit.cause is ExitCause.START_REFUSED
    assert not (bench.output / "started").exists()


def test_a_debugger_reaches_the_jobs_own_processes_alone(bench):
    code = """
        import ctypes, os, signal
        libc = ctypes.CDLL(None, use_errno=True)
        child = os.fork()
        if child == 0:
            signal.pause()
        print(libc.ptrace(16, child, 0, 0), libc.ptrace(16, os.getppid(), 0, 0), libc.ptrace(16, 1, 0, 0))
        seen = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        print(os.getpid() in seen, child in seen, os.getppid() in seen, 1 in seen)
        os.kill(child, 9)
    """
    ended, log = run(bench, bench.python(code))
    assert (ended.phase, log.split()) == (Phase.SUCCEEDED, ["0", "-1", "-1", "True", "True", "False", "False"]), log


@pytest.fixture
def warm(tmp_path):
    bench = WarmBench(tmp_path / "warm")
    yield bench
    clear(bench)


WHO = """
import json, os, sys, torch
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps([os.getuid(), os.getgroups(), status["NoNewPrivs"].strip(), status["Seccomp"].strip(),
                  status["CapEff"].strip(), open("/proc/self/cmdline").read().split("\\0")[:2]]))
"""


def test_a_warm_start_gives_up_root_too(warm):
    own = {"mounts": (MountOrder(str(warm.output), "/data/output", False, owner=(ALICE, ALICE)),)}
    own |= {"uid": ALICE, "project": "a"}
    folder = warm.warm_up(**own)
    order = warm.python(WHO, **own)
    warm.executor.create(order)
    ended = warm.ended(order, LIMIT_S)
    assert ended.facts.get("start") == FORKED, warm.log(order)
    rights = '"1", "2", "0000000000000000", ["python", "/data/output/program.py"]'
    assert warm.log(order) == f"[{ALICE}, [], {rights}]"
    # What a job says of the imports, root's parent must not go by.
    for fields in ({"env": {"LD_PRELOAD": "/tmp/x.so"}, "job_variables": frozenset({"LD_PRELOAD"})}, {"uid": BOB}):
        other = warm.python(WHO, **{**own, **fields})
        pool = warm.executor._launcher._warm.pool(other, warm.executor._launcher._environment(other))
        assert pool is None or pool.folder != folder.parent
    # A package in the home would come before the imported one.
    site = f".local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    (warm.run_dir / "homes/a" / site).mkdir(parents=True)
    ended = warm.run_program(WHO, **own)
    assert "packages of its own" in ended.facts["start"]
