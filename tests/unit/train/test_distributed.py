"""Two real processes that train together with the library's helpers, on gloo."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trainmaster_train as tm
from trainmaster_train import distributed, steps
from trainmaster_train.steps import StepTimer

torch = pytest.importorskip("torch")

HEAD = """
import json, os, sys, warnings
import torch
import torch.distributed as dist
import trainmaster_train as tm
from trainmaster_train import distributed, steps

warnings.simplefilter("ignore")
torch.set_num_threads(1)
def tell(**found):
    os.write(1, (json.dumps(found) + "\\n").encode())
"""

DDP = """
world = distributed.init(backend="cpu:gloo")  # as with GPUs, where NCCL stands beside it
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
steps_of = {}
models = []
for compression in ("none", "fp16", "bf16", "powersgd"):
    torch.manual_seed(1)
    net = torch.nn.Sequential(*[torch.nn.Linear(40, 40) for _ in range(4)])
    distributed.ddp.POWERSGD_START_STEP = 2
    if compression == "powersgd":
        os.environ["TRAINMASTER_COMPRESSION"] = compression
    model = distributed.wrap(net, compression=None if compression == "powersgd" else compression, rank=2)
    models.append(model)  # they live to the end: the case in which torch alone may hang
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    torch.manual_seed(2 + world.rank)
    for batch, is_due in distributed.accumulate(model, torch.randn(8, 16, 40), 2):
        with steps.timer().step():
            model(batch).square().mean().backward()
            if is_due:
                optimizer.step()
                optimizer.zero_grad()
        last = steps.timer().last
        assert abs(sum(last.parts.values()) - last.seconds) <= 0.02 * last.seconds, last
        steps_of.setdefault(compression, []).append((last.bytes_sent, last.parts["communication"]))
    mine = torch.cat([value.flatten() for value in net.state_dict().values()])
    all_of_them = [torch.empty_like(mine) for _ in range(world.size)]
    dist.all_gather(all_of_them, mine)
    assert torch.equal(*all_of_them), compression

data = TensorDataset(torch.arange(8.0))
for _ in distributed.batches(DataLoader(data, batch_size=2)): pass
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=2, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for _ in distributed.batches(loader): pass
before = dict(count=len(distributed.ddp._given_warnings))
for _ in distributed.batches(loader): pass
wrong = DistributedSampler(data, num_replicas=3, rank=0)
for _ in distributed.batches(DataLoader(data, sampler=wrong)): pass
missing = None
group = dist.new_group()
if world.rank == 0:
    try:
        tm.save_sharded({"x": torch.ones(2)}, 9, process_group=group, timeout_s=0.2)
    except tm.CheckpointNotWrittenError as error:
        missing = str(error)
tell(
    rank=world.rank, size=world.size, contract=world.contract, steps=steps_of, warned=before["count"], missing=missing
)
if world.rank == 1:
    import time
    time.sleep(0.3)
distributed.shutdown()
"""


def run(
    folder: Path,
    code: str,
    *arguments: str,
    world: int = 2,
    first_rank: int = 0,
    exits: tuple[int | None, ...] = (),
    **env: str,
) -> list[dict[str, Any]]:
    """What each rank told last, in rank order; every process must end well, or as ``exits`` says (``None``: never)."""
    wanted = list(exits) or [0] * world
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = {
        **os.environ,
        "PYTHONPATH": str(Path(tm.__file__).parent.parent),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world),
        **env,
    }
    processes = []
    for rank in range(world):
        logs = [(folder / f"{rank}.{kind}").open("w+") for kind in ("out", "err")]
        command = [sys.executable, "-c", HEAD + code, *arguments]
        ranked = {**common, "RANK": str(first_rank + rank), "LOCAL_RANK": str(rank)}
        processes.append((subprocess.Popen(command, env=ranked, stdout=logs[0], stderr=logs[1]), logs))
    try:
        codes = [
            None if end is None else one.wait(timeout=200) for (one, _), end in zip(processes, wanted, strict=True)
        ]
    finally:
        for process, logs in processes:
            process.kill()
            process.wait()
            for log in logs:
                log.close()
    errors = [(folder / f"{rank}.err").read_text() for rank in range(world)]
    assert codes == wanted, "\n".join(errors)
    return [json.loads((folder / f"{rank}.out").read_text().splitlines()[-1]) for rank in range(world)]


def test_every_compression_trains_the_same_model_everywhere_and_all_leave(alone: Path, tmp_path: Path) -> None:
    results = run(tmp_path, DDP)

    assert [(found["rank"], found["size"], found["contract"]) for found in results] == [
        (0, 2, "torch"),
        (1, 2, "torch"),
    ]
    for found in results:
        assert found["warned"] == 1
        steps = found["steps"]
        gradients = 4 * (40 * 40 + 40) * 4  # bytes; with two ranks each sends them once
        sent = {name: [count for count, _ in of] for name, of in steps.items()}
        # Every other step only accumulates, and the watchers of the models before see no exchange of theirs.
        assert sent["none"] == [0, gradients] * 4
        assert sent["fp16"] == sent["bf16"] == [0, gradients // 2] * 4
        assert 0 < sent["powersgd"][1] < gradients // 2
        assert all(seconds > 0 for _, seconds in steps["none"][1::2])
    assert results[0]["missing"].startswith(
        "the checkpoint of step 9 was not written: not all processes came within 0.2 s ("
    )
    assert "Ranks 1 failed" in results[0]["missing"]
    warnings = (tmp_path / "0.err").read_text()
    assert "each of the 2 processes reads all of the data: give the DataLoader `sampler=Distributed" in warnings
    assert "two epochs in the same order: call `sampler.set_epoch(epoch)`" in warnings
    assert "the DistributedSampler is of process 0 of 3" in warnings


FSDP = """
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

world = distributed.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.ReLU(), torch.nn.Linear(24, 1))
fully_shard(model, mesh=init_device_mesh("cpu", (world.size,)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
distributed.watch(model, optimizer=optimizer)
steps.timer().end_step()  # starts the clock
measured = []

def step():
    torch.manual_seed(5)
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    last = steps.timer().last
    assert abs(sum(last.parts.values()) - last.seconds) <= 0.02 * last.seconds, last
    measured.append((last.bytes_sent, last.parts["communication"]))

def total():
    return sum(float(p.full_tensor().double().abs().sum()) for p in model.parameters())

def state():
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}

exchanged = []
for batch, is_due in distributed.accumulate(model, torch.randn(2, 8, 16), 2):
    model(batch).square().mean().backward()
    steps.timer().end_step()
    exchanged.append(steps.timer().last.bytes_sent)

first = 0
into = state()
found = tm.resume(into=into)
if found is not None:
    set_state_dict(model, optimizer, model_state_dict=into["model"], optim_state_dict=into["optimizer"])
    first = found.step
resumed = total()
step()
tm.save_sharded(state(), first + 1, {"loss": 0.5})
with tm.Saver(sharded=True) as saver:
    step()
    saver.save(state(), first + 2, {"loss": 0.25})
    saved = total()
    step()  # while it is being written
if len(sys.argv) > 1:
    try:
        tm.save_sharded(state(), first + 3, directory=sys.argv[1])
    except tm.CheckpointNotWrittenError as error:
        tell(first=first, resumed=resumed, saved=saved, error=str(error), measured=measured, exchanged=exchanged)
else:
    tell(first=first, resumed=resumed, saved=saved, path=str(found.path if found else ""))
distributed.shutdown()
"""


def test_a_sharded_checkpoint_is_resumed_by_another_number_of_processes(alone: Path, tmp_path: Path) -> None:
    (tmp_path / "no-folder").write_text("a file where a folder is wanted")
    by_two = run(tmp_path, FSDP, str(tmp_path / "no-folder"))
    assert [found["first"] for found in by_two] == [0, 0]
    # What fails in rank 0 is told in every rank, and none waits.
    assert {found["error"] for found in by_two} == {by_two[0]["error"]}
    assert "the checkpoint of step 3 was not written" in by_two[0]["error"]
    # Parameters are gathered for the forward pass (and kept: there is one group), gradients scattered; half of each is
    # sent.
    parameters = (24 * 16 + 24 + 2 * 24 + 2) * 4  # bytes, the last layer padded to two processes
    assert [sent for sent, _ in by_two[0]["measured"]] == [parameters] * 3
    assert all(waited > 0 for _, waited in by_two[0]["measured"])
    assert by_two[0]["exchanged"] == [parameters // 2, parameters]  # the first batch of two scatters no gradients
    newest = alone / "checkpoints" / "step-00000002"
    assert tm.latest() == newest
    assert len(list(newest.glob("*.distcp"))) == 2

    (by_one,) = run(tmp_path, FSDP, world=1)

    assert (by_one["first"], by_one["path"]) == (2, str(newest))
    assert by_one["resumed"] == pytest.approx(by_two[0]["saved"], rel=1e-6)
    reports = [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
    results = [line["step"] for line in reports if line["kind"] == "checkpoint"]
    assert results == [1, 2, 3, 4]


WORLDS = """
import gc, weakref
from trainmaster_train.elastic import ElasticWorld, Group

net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
group = Group()
before = []

def train():
    model = distributed.wrap(net, optimizer=optimizer)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    before.append(weakref.ref(model))

steps.timer().end_step()  # starts the clock
found = []
for number in (1, 2):
    group.join(ElasticWorld(number))
    train()
    gc.collect()
    found.append((steps.timer().count, before[-1]() is None, len(steps.timer()._at_end)))
    group.leave()
tell(found=found)
"""


def test_a_model_wrapped_in_each_world_counts_each_step_once_and_is_freed_before_its_group(
    alone: Path, tmp_path: Path
) -> None:
    (results,) = run(tmp_path, WORLDS, world=1)

    assert results["found"] == [[3, True, 0], [6, True, 0]]


LATE = """
import time
from trainmaster_train.elastic import ElasticWorld, Group
from trainmaster_train.elastic import worlds

world = worlds.own_world()
if world.rank == 0:
    time.sleep(1.5)  # the others look for it meanwhile, as those that join a gang do
group = Group()
group.join(world)
group.leave()
tell(size=world.size)
"""


def test_a_rank_that_joins_before_rank_0_prints_no_stack_trace(alone: Path, tmp_path: Path) -> None:
    assert run(tmp_path, LATE) == [{"size": 2}, {"size": 2}]
    assert (tmp_path / "1.err").read_text() == ""


def test_a_model_that_torch_does_not_measure_is_left_as_it_is(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timer = StepTimer()
    monkeypatch.setattr(steps, "timer", lambda: timer)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    distributed.watch(model, optimizer=optimizer)
    timer.end_step()  # starts the clock
    optimizer.step()

    assert timer.count == 1


@pytest.mark.parametrize("names", [(), ("_all_gather_comm",)], ids=["no collectives to time", "collectives"])
def test_a_sharded_model_of_an_older_torch_is_watched(alone: Path, names: tuple[str, ...]) -> None:
    # Until 2.12 one module had one group, under another name, and at first nothing in it could be replaced.
    own = SimpleNamespace(allocate=None)
    group = SimpleNamespace(**dict.fromkeys(names, own))

    class Layer(torch.nn.Linear):
        def _get_fsdp_state(self) -> Any:
            return SimpleNamespace(_fsdp_param_group=group)

    class Whole(torch.nn.Sequential):
        def _get_fsdp_state(self) -> Any:
            return SimpleNamespace(_fsdp_param_group=None)  # its children have them all

    model = Whole(Layer(4, 1))

    distributed.watch(model)

    assert all(getattr(group, name) is not own for name in names)


LONELY = """
from datetime import timedelta
try:
    distributed.init(timeout=timedelta(seconds=2))
except distributed.DistributedError as error:
    tell(error=str(error))
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_whose_peers_never_come_names_them(alone: Path, tmp_path: Path, rank: int) -> None:
    (results,) = run(tmp_path, LONELY, world=1, first_rank=rank, WORLD_SIZE="2")

    waited = "waited for 2 s, and rank 1 did not come: see their logs"
    assert results["error"].startswith(
        f"rank {rank} of 2 (torch) " + (waited if rank == 0 else "could not meet the others at 127.0.0.1:")
    )


STOPPED = """
import signal
from datetime import timedelta
world = distributed.init(silence=timedelta(seconds=4))
tell()
dist.all_reduce(torch.ones(4))
if world.rank == int(sys.argv[1]):
    os.kill(os.getpid(), signal.SIGSTOP)
dist.all_reduce(torch.ones(4))  # torch itself would wait here for half an hour
"""


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_wait_for_a_stopped_process_ends_and_names_it(alone: Path, tmp_path: Path, stopped: int) -> None:
    layout = json.dumps({"roles": {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}})

    run(tmp_path, STOPPED, str(stopped), exits=(None, 1) if stopped == 0 else (1, None), TRAINMASTER_LAYOUT=layout)

    name = ("rank 0 (chief-0)", "rank 1 (worker-0)")[stopped]
    last = (tmp_path / f"{1 - stopped}.err").read_text().splitlines()[-1]
    assert last.startswith(
        f"trainmaster: {name} has sent no heartbeat for 4 s, so it is stopped or its machine is unreachable: "
    )


@pytest.mark.parametrize("name", ["timeout", "silence"])
def test_a_time_that_is_none_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: 60 is not a timedelta above 0"):
        distributed.init(**{name: 60})  # type: ignore[arg-type]
