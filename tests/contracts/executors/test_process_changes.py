"""What the kernel tells of plain processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from executors.base import Phase, ReportsChanges
from executors.process.folder_watcher import FolderWatcher


@pytest.fixture
def bench(process_bench):
    if not process_bench.executor.listen():
        pytest.skip("the kernel gives no inotify here")
    return process_bench


def until_reported(bench, order, holds, limit_s=30.0):
    """Observe only after a reported change; seconds from ``limit_s`` that were left."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if order.key.attempt_id in bench.executor.wait_for_change(end - time.monotonic()):
            (observation,) = bench.executor.observe(order.key.attempt_id)
            if holds(observation):
                return observation
    raise AssertionError("never reported")


def test_the_start_and_the_end_are_reported(bench):
    assert isinstance(bench.executor, ReportsChanges)
    order = bench.order(command="while [ ! -e /data/output/go ]; do sleep 0.02; done; exit 3")
    bench.executor.create(order)
    (observation,) = bench.executor.observe(order.key.attempt_id)
    if observation.phase is not Phase.RUNNING:
        until_reported(bench, order, lambda observation: observation.phase is Phase.RUNNING)
    (bench.output / "go").touch()
    assert until_reported(bench, order, lambda observation: observation.phase is Phase.FAILED).exit.exit_code == 3


def test_the_death_of_a_runtime_is_reported(bench):
    order = bench.order(command="sleep 1000")
    bench.executor.create(order)
    observation = bench.until(order, lambda observation: observation.phase is Phase.RUNNING)
    os.kill(observation.facts["runtime_pid"], signal.SIGKILL)
    until_reported(bench, order, lambda observation: observation.phase is Phase.LOST)
    bench.executor.remove(order.key.attempt_id)


def test_another_control_plane_hears_of_what_it_has_observed(bench):
    order = bench.order(command="while [ ! -e /data/output/go ]; do sleep 0.02; done")
    bench.executor.create(order)
    bench.until(order, lambda observation: observation.phase is Phase.RUNNING)
    other = bench.another()
    assert other.listen()
    other.observe(order.key.attempt_id)
    (bench.output / "go").touch()
    assert other.wait_for_change(30) == {order.key.attempt_id}


def test_nothing_is_reported_before_it_listens_nor_of_what_is_gone(bench, process_bench):
    assert process_bench.another().wait_for_change(0.01) == frozenset()
    order = bench.order(command="true")
    bench.executor.create(order)
    bench.ended(order)
    bench.executor.remove(order.key.attempt_id)
    while bench.executor.wait_for_change(0.2):
        pass
    assert not bench.executor._watcher._watches


def test_looks_make_no_changes_of_their_own(bench):
    order = bench.order(command="sleep 1000")
    bench.executor.create(order)
    bench.until(order, lambda observation: observation.phase is Phase.RUNNING)
    while bench.executor.wait_for_change(0.5):
        pass
    for _ in range(3):
        bench.executor.observe(order.key.attempt_id)
    assert bench.executor.wait_for_change(0.2) == frozenset()
    bench.executor.remove(order.key.attempt_id)


def test_a_watcher_without_inotify_waits(monkeypatch, tmp_path):
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: object())  # a C library without inotify
    changes = FolderWatcher()
    changes.watch(Path(tmp_path))
    assert changes.is_unavailable
    assert changes.wait(0.01) == frozenset()


def test_what_is_written_aside_does_not_end_the_wait(tmp_path):
    changes = FolderWatcher()
    if changes.is_unavailable:
        pytest.skip("the kernel gives no inotify here")
    folder = tmp_path / "att-1" / "worker-0.1"
    folder.mkdir(parents=True)
    changes.watch(folder)

    def write() -> None:
        (folder / "exit.json.tmp").write_text("{}")
        time.sleep(0.3)
        (folder / "exit.json.tmp").rename(folder / "exit.json")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert changes.wait(10) == {"att-1"}
    finally:
        writer.join()


def test_after_more_than_the_kernel_keeps_everything_may_have_changed(tmp_path):
    changes = FolderWatcher()
    if changes.is_unavailable:
        pytest.skip("the kernel gives no inotify here")
    folder = tmp_path / "att-1" / "worker-0.1"
    folder.mkdir(parents=True)
    changes.watch(folder)
    overflow = (-1).to_bytes(4, "little", signed=True) + (0x4000).to_bytes(4, "little") + bytes(8)
    assert changes._parse_events(overflow) == ({"att-1"}, False)
