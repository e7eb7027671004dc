"""One runtime per start, at any death of a creator, and the observation after the runtime's own death."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from core import worker_packages
from core.worker_packages import RUNTIME, find_package
from executors.base import ExitCause, Phase
from executors.process import ProcessExecutor, procfs
from executors.process.launcher import RuntimeLauncher
from executors.process.state import ReplicaFolder, mark_of
from tests.contracts.executors.conftest import ProcessBench


@pytest.fixture
def bench(process_bench):
    return process_bench


def test_killing_the_runtime_is_seen_as_lost_and_leaves_nothing(bench):
    order = bench.order(command="setsid sleep 1000 & echo $! > /data/output/pid; sleep 1000")
    bench.executor.create(order)
    child = int(bench.wait_for(lambda: bench.text(bench.output / "pid")))
    observation = bench.until(order, lambda o: o.phase is Phase.RUNNING)
    os.kill(observation.facts["runtime_pid"], signal.SIGKILL)
    observation = bench.ended(order)
    assert observation.phase is Phase.LOST
    assert observation.detail.startswith(
        "The runtime of worker-0 is gone and left no exit code: something outside the platform killed it"
    )
    assert observation.exit is None
    bench.wait_for(lambda: not procfs.marked(mark_of(order.key)), what="the end of what was left")
    assert not bench.is_alive(child)
    assert not any(Path(group).exists() for group in groups_of(bench, order))


def test_an_installed_runtime_runs_jobs(tmp_path, monkeypatch):
    installed = tmp_path / "site-packages" / "trainmaster_runtime"
    shutil.copytree(find_package(RUNTIME), installed, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(worker_packages, "CHECKOUT", tmp_path / "no checkout")
    monkeypatch.syspath_prepend(installed.parent)
    monkeypatch.delitem(sys.modules, "trainmaster_runtime", raising=False)
    bench = ProcessBench(tmp_path / "bench")
    order = bench.order(command=bench.python("print('from an installed platform')"))
    bench.executor.create(order)
    assert bench.ended(order).phase is Phase.SUCCEEDED, bench.log(order)
    assert "from an installed platform" in bench.log(order)
    assert list(installed.rglob("*.pyc")), "it ran from another folder"


def groups_of(bench, order) -> list[str]:
    """Folders of the control groups that the replica may have."""
    runtime = ReplicaFolder(bench.state(order)).runtime()
    return list(runtime.groups) if runtime else []


@pytest.mark.parametrize("is_removed", [True, False], ids=["removed", "seen as lost"])
def test_groups_of_a_runtime_killed_before_the_start_are_swept(bench, is_removed):
    order = bench.order(command="true", peer_hosts=("nobody.invalid",))
    bench.executor.create(order)
    observation = bench.until(order, lambda o: "Waiting for the names" in o.detail)
    groups = groups_of(bench, order)
    assert all(group.endswith(f"trainmaster-{order.key.attempt_id}-worker-0.1") for group in groups)
    if not any(Path(group).exists() for group in groups):
        pytest.skip("no control groups can be made here")
    os.kill(observation.facts["runtime_pid"], signal.SIGKILL)
    if is_removed:
        bench.executor.remove(order.key.attempt_id)
    else:
        assert bench.ended(order).phase is Phase.LOST
    assert not any(Path(group).exists() for group in groups)


def test_a_lost_replica_is_not_started_again_by_a_repeated_create(bench):
    order = bench.order(command="echo x >> /data/output/starts; sleep 1000")
    bench.executor.create(order)
    observation = bench.until(order, lambda o: o.phase is Phase.RUNNING)
    bench.wait_for(lambda: bench.text(bench.output / "starts"))
    os.kill(observation.facts["runtime_pid"], signal.SIGKILL)
    bench.until(order, lambda o: o.phase is Phase.LOST)
    bench.executor.create(order)
    assert bench.ended(order).phase is Phase.LOST
    assert (bench.output / "starts").read_text() == "x\n"


def test_the_boot_before_is_lost(bench):
    order = bench.order(command="true")
    bench.executor.create(order)
    bench.ended(order)
    state = bench.state(order)
    (state / "exit.json").unlink()
    text = (state / "runtime.json").read_text().replace(procfs.boot_id(), "11111111-2222-3333-4444-555555555555")
    (state / "runtime.json").write_text(text)
    observation = bench.ended(order)
    assert (observation.phase, observation.detail) == (Phase.LOST, "The machine of worker-0 was restarted.")


@pytest.mark.parametrize("delay_s", [0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1])
def test_a_creator_killed_at_any_moment_leaves_at_most_one_running(bench, delay_s):
    order = bench.order(command="echo x >> /data/output/starts; sleep 1000")
    pid = os.fork()
    if pid == 0:
        try:
            bench.executor.create(order)
        finally:
            os._exit(0)
    time.sleep(delay_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    adopter = bench.another()
    adopter.create(order)
    bench.until(order, lambda o: o.phase is Phase.RUNNING)
    bench.wait_for((bench.output / "starts").exists)
    time.sleep(0.1)  # a second one would have written by now
    assert (bench.output / "starts").read_text() == "x\n"
    (observation,) = adopter.observe(order.key.attempt_id)
    assert observation.phase is Phase.RUNNING


class DiesAfterTheClaim(ProcessExecutor):
    def _write_order(self, *_):
        os._exit(9)


class DiesAfterTheFirstFile(ProcessExecutor):
    def _write_order(self, *arguments):
        write_text = ReplicaFolder.write_text
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ReplicaFolder, "write_text", lambda *file: (write_text(*file), os._exit(9)))
            super()._write_order(*arguments)


class DiesBeforeTheLaunch(ProcessExecutor):
    def _write_order(self, *arguments):
        super()._write_order(*arguments)
        os._exit(9)


class DiesAfterTheLaunch(ProcessExecutor):
    def create(self, order):
        start = RuntimeLauncher.start

        def start_and_die(*arguments):
            start(*arguments)
            os._exit(9)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RuntimeLauncher, "start", start_and_die)
            super().create(order)


@pytest.mark.parametrize("driver", [DiesAfterTheClaim, DiesAfterTheFirstFile, DiesBeforeTheLaunch, DiesAfterTheLaunch])
def test_a_creator_killed_between_two_steps_leaves_what_the_next_can_finish(bench, driver):
    order = bench.order(command="echo x >> /data/output/starts; sleep 1000", token="tma_x")
    pid = os.fork()
    if pid == 0:
        try:
            bench.another(driver).create(order)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    adopter = bench.another()
    before = adopter.observe(order.key.attempt_id)
    assert bool(before) == (driver is DiesAfterTheLaunch)
    adopter.create(order)
    bench.until(order, lambda o: o.phase is Phase.RUNNING)
    bench.wait_for(lambda: bench.text(bench.output / "starts"))
    adopter.create(order)
    assert (bench.output / "starts").read_text() == "x\n"


def test_a_stop_that_comes_while_the_runtime_starts_is_heard(bench):
    for _ in range(10):
        order = bench.order(command="sleep 1000")
        bench.executor.create(order)
        bench.executor.stop(order.key, grace=timedelta(seconds=5))
        assert bench.ended(order).exit.cause is ExitCause.STOPPED


def test_an_end_from_outside_the_platform_is_the_nodes(bench):
    order = bench.order(command="sleep 1000")
    bench.executor.create(order)
    observation = bench.until(order, lambda o: o.phase is Phase.RUNNING)
    os.kill(observation.facts["runtime_pid"], signal.SIGTERM)
    assert bench.ended(order).exit.cause is ExitCause.NODE_LOST


def test_a_claim_whose_creator_died_is_not_seen_and_can_be_made_again(bench):
    order = bench.order(command="true")
    state = bench.state(order)
    state.mkdir(parents=True)
    (state / "lock").touch()
    (state / "order.json").write_text('{"half')
    assert list(bench.executor.observe(order.key.attempt_id)) == []
    bench.executor.create(order)
    assert bench.ended(order).phase is Phase.SUCCEEDED
