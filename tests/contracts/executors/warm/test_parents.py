"""The life of preloaded Pythons: when they come and go, and that nothing depends on them."""

from __future__ import annotations

import os
import signal
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from core import file_locks
from executors.base import Phase
from executors.process import WarmLimits, procfs, warm
from executors.process.state import ReplicaFolder
from executors.process.warm import ParentPool
from tests.contracts.executors.warm.bench import FORKED, LIMIT_S, SAYS, WAIT_FOR_RELEASE, is_alive, run, wait_for


def test_the_output_of_the_import_is_in_each_log(bench):
    (bench.site / "torch/_dynamo/__init__.py").write_text("import sys; print('a warning', file=sys.stderr)")
    bench.warm_up()
    assert bench.log(run(bench, "import torch; print('then')")).splitlines() == ["a warning", "then"]


def test_running_replicas_and_new_ones_outlive_a_killed_parent(bench):
    folder = bench.warm_up()
    (bench.output / "release").unlink()
    order = bench.python(WAIT_FOR_RELEASE)
    bench.executor.create(order)
    running = bench.until(order, lambda o: o.phase is Phase.RUNNING)
    assert running.facts["start"] == FORKED
    pid = bench.pid(folder)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))
    # No copy of its lock is left in what it forked: there may be another parent at once.
    assert not file_locks.is_locked(folder / "lock")
    second = bench.python(WAIT_FOR_RELEASE)
    bench.executor.create(second)
    wait_for(lambda: bench.pid(folder) != pid)
    (bench.output / "release").touch()
    assert bench.ended(order).phase is Phase.SUCCEEDED
    cold = bench.ended(second)
    assert (cold.phase, cold.facts.get("start")) == (Phase.SUCCEEDED, None)


def test_a_parent_that_does_not_answer_is_passed_by(lasting, monkeypatch):
    pid = lasting.pid(lasting.parent())
    os.kill(pid, signal.SIGSTOP)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(warm, "HELLO_S", 0.1)
            observation = lasting.run_program(SAYS)
        assert (observation.phase, observation.facts.get("start")) == (Phase.SUCCEEDED, None)
    finally:
        os.kill(pid, signal.SIGCONT)
    run(lasting, SAYS)


class AwaitedClaim(ReplicaFolder):
    def claim_start(self) -> bool:
        wait_for(lambda: self.read("start_claim"))
        return super().claim_start()


@pytest.mark.parametrize("has_claimed", [False, True])
def test_a_forked_runtime_that_stalls_is_not_waited_for(lasting, tmp_path, monkeypatch, has_claimed):
    """It is stopped where it reads its order. Before the claim it is ended, and the order executed; else it goes on."""
    folder = lasting.parent()
    state = AwaitedClaim(tmp_path)
    os.mkfifo(tmp_path / "order.json")
    if has_claimed:
        state.write("runtime.json", {"pid": 1, "start_ticks": 1, "boot_id": ""})
    for name in ("ANSWER_S", "CLAIM_S"):
        monkeypatch.setattr(warm, name, 0.2)
    starts = warm.WarmStarts(folder.parents[1], WarmLimits(1, 2**31, 60.0), python="python", runtime=Path())
    with (tmp_path / "lock").open("w") as lock, (tmp_path / "log").open("w") as log:
        reported = starts.start(
            ParentPool(folder.parent, {}, tmp_path / "hint"), state, {}, lock=lock.fileno(), log=log.fileno()
        )
    claim = state.read("start_claim")
    assert claim is not None
    assert reported == (warm.CLAIMED if has_claimed else None)
    assert is_alive(claim["pid"]) == has_claimed
    procfs.send(claim["pid"], claim["start_ticks"], signal.SIGKILL)


def test_a_stop_ends_a_forked_replica_with_all_its_children(lasting):
    # In one write each: `print` writes an unbuffered line's end apart, and two processes may mix theirs.
    text = "import os, time, torch\nos.write(1, b'%d\\n' % os.fork())\ntime.sleep(600)"
    order = lasting.python(text)
    lasting.executor.create(order)
    wait_for(lambda: len(lasting.log(order).splitlines()) == 2)
    lasting.executor.stop(order.key, grace=timedelta(seconds=20))
    observation = lasting.ended(order)
    assert observation.exit is not None
    assert observation.exit.cause == "stopped"
    child = max(int(line) for line in lasting.log(order).splitlines())
    assert not is_alive(child)


def test_what_a_killed_runtime_leaves_is_found_and_ended(lasting):
    order = lasting.python("import time, torch; time.sleep(600)")
    lasting.executor.create(order)
    running = lasting.until(order, lambda o: o.phase is Phase.RUNNING)
    os.kill(running.facts["runtime_pid"], signal.SIGKILL)
    assert lasting.until(order, lambda o: o.phase is Phase.LOST).phase is Phase.LOST
    wait_for(lambda: not is_alive(running.facts["pid"]))


@pytest.mark.parametrize("what", ["torch/nn/__init__.py", "another.dist-info"])
def test_a_parent_ends_when_its_environment_changes(bench, what):
    folder = bench.warm_up()
    pid = bench.pid(folder)
    path = bench.site / what
    if path.exists():
        path.write_text("changed = True\n")
    else:
        path.mkdir()
    observation = bench.run_program("import sys, torch.nn; print(hasattr(torch.nn, 'changed'))")
    assert observation.facts.get("start") is None
    wait_for(lambda: not is_alive(pid))


def test_a_parent_ends_when_no_job_needs_it(make):
    bench = make(idle_s=0.1)
    folder = bench.warm_up()
    pid = bench.pid(folder)
    wait_for(lambda: not is_alive(pid))
    assert bench.run_program(SAYS).facts.get("start") is None


def test_a_parent_ends_when_its_socket_is_taken_away(bench):
    """As the platform does when it is stopped, and as happens when its home is deleted."""
    folder = bench.warm_up()
    pid = bench.pid(folder)
    (folder / "socket").unlink()
    wait_for(lambda: not is_alive(pid))


def test_the_parent_that_rested_longest_makes_room_for_another(make):
    bench = make(parents=1)
    first = bench.pid(bench.warm_up())
    (bench.output / "release").unlink()
    order = bench.python(WAIT_FOR_RELEASE, env={"OMP_NUM_THREADS": "2"})
    bench.executor.create(order)
    wait_for(lambda: not is_alive(first))
    (bench.output / "release").touch()
    assert bench.ended(order).phase is Phase.SUCCEEDED


def test_an_environment_that_starts_threads_gets_no_parent(make):
    bench = make()
    (bench.site / "torch/_dynamo/__init__.py").write_text(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    order = bench.python(WAIT_FOR_RELEASE)
    bench.executor.create(order)
    unfit = wait_for(lambda: list(bench.run_dir.glob("warm/*/*/unfit")))
    assert "starts threads" in wait_for(unfit[0].read_text)
    (bench.output / "release").touch()
    assert bench.ended(order).phase is Phase.SUCCEEDED


def test_only_the_owner_reaches_a_parent(lasting):
    folder = lasting.parent()
    assert (folder / "socket").stat().st_mode & 0o777 == 0o600
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder, *folder.parents[:2]))


_DDP = """
import os, sys, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(4, 2))
rank = dist.get_rank()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.full((8, 4), 1.0 + rank)).sum().backward()
    optimizer.step()
while not os.path.exists("/data/output/release"):
    time.sleep(0.02)
weights = [round(v, 4) for v in model.module.weight.detach().flatten().tolist()]
print(rank, dist.get_world_size(), weights, torch.get_num_threads())
dist.destroy_process_group()
sys.exit(0)
"""


def test_real_ranks_train_and_end_at_once(make):
    """A DDP module that outlives its group hangs in the teardown of some forked ranks: these leave before it."""
    pytest.importorskip("torch")
    bench = make()
    env = {"PYTHONPATH": "", "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    lines = []
    for start in (None, FORKED, FORKED):
        ranks = tuple({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2))
        world = {"MASTER_PORT": _free_port(), "WORLD_SIZE": "2"}
        order = bench.python(_DDP, env={**env, **world}, process_env=ranks)
        bench.executor.create(order)
        bench.parent()
        (bench.output / "release").touch()
        observation = bench.ended(order, LIMIT_S)
        assert observation.facts.get("start") == start
        assert observation.exit is not None
        assert (observation.exit.cause, observation.exit.exit_code) == ("exited", 0), bench.log(order)
        lines.append(sorted(bench.log(order).splitlines()))
    assert lines[0] == lines[1] == lines[2]
    assert [line.split()[2:4] for line in lines[0][:2]] == [["0", "2"], ["1", "2"]]


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])
