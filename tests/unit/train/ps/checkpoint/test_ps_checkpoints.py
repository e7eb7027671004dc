"""What a ps holds outlives it, whole and of one step; any number of ps takes it up."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trainmaster_train as tm

torch = pytest.importorskip("torch")

from trainmaster_train.checkpoint.errors import DamagedError  # noqa: E402
from trainmaster_train.ps import Options, load_model  # noqa: E402
from trainmaster_train.ps.checkpoint import chief  # noqa: E402
from trainmaster_train.ps.checkpoint.chief import CheckpointCoordinator  # noqa: E402
from trainmaster_train.ps.checkpoint.shard_checkpoint import restore_shard  # noqa: E402
from trainmaster_train.ps.errors import RefusedError  # noqa: E402
from trainmaster_train.ps.layout import layout_of  # noqa: E402
from trainmaster_train.ps.server.server import ParameterServer  # noqa: E402
from trainmaster_train.ps.server.sessions import WorkerRequest  # noqa: E402
from trainmaster_train.ps.server.shard import Shard  # noqa: E402

from tests.unit.train.ps.loopback import (  # noqa: E402
    WITHIN_S,
    Cluster,
    flip_a_bit,
    make_model,
    sgd,
    step,
    together,
    values_of,
)


def adam(model: Any) -> Any:
    return torch.optim.Adam(model.parameters(), lr=0.05)


class Whole(torch.nn.Module):
    """Dense values, a table, a buffer and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.body = make_model()
        self.table = torch.nn.Embedding(7, 8, sparse=True)
        self.norm = torch.nn.BatchNorm1d(8)
        self.frozen = torch.nn.Parameter(torch.rand(8), requires_grad=False)

    def forward(self, inputs: Any) -> Any:
        return self.body(self.norm(inputs) + self.table(torch.arange(len(inputs)) % 7) * self.frozen)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (1, 3), (3, 2)])
def test_any_number_of_ps_goes_on_where_others_stopped(
    cluster: Callable[..., Cluster], before: int, after: int
) -> None:
    model, servers = cluster(before, make=Whole, optimizer=adam).join()
    for number in range(3):
        step(model, servers, number)
    path = servers.checkpoint(loss=0.5)
    job = cluster(after, make=Whole, optimizer=adam)
    for index in range(after):
        job.stop(index)
        job.start(index, path)
    torch.manual_seed(99)
    other, others = job.join()
    assert others.version == 3
    for number in range(3, 6):
        step(model, servers, number)
        step(other, others, number)

    servers.pull(tables=True)
    others.pull(tables=True)
    torch.testing.assert_close(values_of(other), values_of(model))
    assert torch.equal(other.norm.running_mean, model.norm.running_mean)


def test_a_model_is_loaded_without_any_ps(cluster: Callable[..., Cluster]) -> None:
    model, servers = cluster(2, make=Whole, optimizer=adam).join()
    for number in range(2):
        step(model, servers, number)
    model.frozen.data += 1
    path = servers.checkpoint(accuracy=0.75)

    loaded = load_model(Whole(), path)

    servers.pull(tables=True)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert tm.checkpoint.read_meta(path) == {"step": 2, "metrics": {"accuracy": 0.75}}


def test_checkpoints_are_written_while_training_and_the_newest_stay(cluster: Callable[..., Cluster]) -> None:
    model, servers = cluster(2, Options(checkpoint_every=3, keep_checkpoints=2)).join()
    for number in range(13):
        step(model, servers, number)
    servers.checkpoint()

    steps = [int(path.name.removeprefix("step-")) for path in tm.checkpoint.complete_checkpoints()]
    assert steps == [12, 13]


@pytest.mark.parametrize("after", [2, 3])
def test_a_ps_that_reads_what_was_not_written_says_so(cluster: Callable[..., Cluster], after: int) -> None:
    job = cluster(2)
    step(*job.join(), 1)
    path = job.joined[0].checkpoint()
    flip_a_bit(path / "shard-00001-of-00002.pt", job.servers[1]._shard)
    model = make_model()
    shards = [Shard(layout_of(model, sgd(model)), sgd(model), ps, after) for ps in range(after)]

    for shard in shards[1:] if after == 2 else shards:
        with pytest.raises(DamagedError, match=r"shard-00001-of-00002.pt: is damaged: its content is not what was wri"):
            restore_shard(shard, path)
    if after == 2:  # whose file is whole, and who reads no other
        restore_shard(shards[0], path)
        assert torch.equal(shards[0].values[0], job.servers[0]._shard.values[0])


def test_in_sync_mode_all_shards_are_of_the_same_step(
    cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What makes this slow is a busy disk, and what gives up because of it is not looked at here.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(chief, "HOLD_S", WITHIN_S)
    job = cluster(3, Options(mode="sync", backup_workers=1, checkpoint_every=4), workers=3)
    members = [job.join(rank) for rank in range(3)]
    retained: list[set[int]] = []
    finish = CheckpointCoordinator.finish

    def look(self: CheckpointCoordinator) -> None:
        finish(self)
        for path in tm.checkpoint.complete_checkpoints():
            files = path.glob("shard-*.pt")
            retained.append({torch.load(file, weights_only=True)["version"] for file in files} | {int(path.name[5:])})

    monkeypatch.setattr(CheckpointCoordinator, "finish", look)

    def train(rank: int) -> None:
        model, servers = members[rank]
        for _ in servers.steps(until=12):
            step(model, servers, rank)

    together(*(lambda rank=rank: train(rank) for rank in range(3)))
    members[0][1].checkpoint()
    look(members[0][1]._checkpoints)  # type: ignore[arg-type]

    assert len(retained) >= 3
    assert all(len(versions) == 1 for versions in retained), retained


class Refusing(ParameterServer):
    def _op_hold(self, request: WorkerRequest) -> None:
        raise RefusedError("not now")


@pytest.mark.parametrize("failing", ["the hold", "the folder"])
@pytest.mark.parametrize("is_requested", [False, True])
def test_no_ps_stays_paused_for_a_checkpoint_that_cannot_begin(
    cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, failing: str, *, is_requested: bool
) -> None:
    def make_server(shard: Shard, *arguments: Any, **options: Any) -> ParameterServer:
        is_refusing = failing == "the hold" and shard.ps == 1
        return (Refusing if is_refusing else ParameterServer)(shard, *arguments, **options)

    options = Options(mode="sync", checkpoint_every=None if is_requested else 1)
    job = cluster(2, options, make_server=make_server)
    model, servers = job.join()
    if failing == "the folder":

        def refuse(step: int) -> Path:
            raise tm.checkpoint.CheckpointNotWrittenError(f"the checkpoint of step {step} was not written")

        monkeypatch.setattr(chief, "stage_checkpoint", refuse)
    step(model, servers, 1)
    if is_requested:
        with pytest.raises(tm.CheckpointError, match="not now" if failing == "the hold" else "was not written"):
            servers.checkpoint()

    servers.status()  # they have heard by now

    assert not any(server._shard_writer.is_paused for server in job.servers)
    assert not tm.checkpoint.complete_checkpoints()


def test_a_restarted_ps_takes_up_from_the_checkpoint_and_its_workers_go_on(
    cluster: Callable[..., Cluster], capfd: pytest.CaptureFixture[str]
) -> None:
    job = cluster(2, workers=2)
    members = [job.join(0), job.join(1)]
    for model, servers in members:
        step(model, servers, 1)
    path = members[0][1].checkpoint()
    step(*members[0], 2)
    job.stop(1)
    job.start(1, path)

    for model, servers in members:
        step(model, servers, 3)  # on its way to the ps that is lost: given up there
        step(model, servers, 4)

    assert members[1][1].versions == (7, 4)
    assert "worker 0: lost a ps (ps 1 at" in capfd.readouterr().out


def test_a_restarted_ps_without_a_checkpoint_takes_the_chiefs_values(cluster: Callable[..., Cluster]) -> None:
    job = cluster(1)
    model, servers = job.join()
    for number in range(3):
        step(model, servers, number)
    before = values_of(model).clone()
    job.stop(0)
    job.start(0)

    servers.pull()

    assert servers.version == 0
    assert torch.equal(values_of(model), before)


def test_a_worker_that_returns_takes_the_newest_values(cluster: Callable[..., Cluster]) -> None:
    job = cluster(2, workers=2)
    model, servers = job.join(0)
    for number in range(3):
        step(model, servers, number)

    other, _ = job.join(1, model=make_model(seed=77))
    again, others = job.join(1, model=make_model(seed=78))

    assert torch.equal(values_of(other), values_of(model))
    assert torch.equal(values_of(again), values_of(model))
    step(again, others, 9)
    assert others.version == 4


def test_a_folder_that_is_not_shared_is_named(
    cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, servers = cluster(1).join()
    step(model, servers, 1)
    monkeypatch.setattr(
        "trainmaster_train.ps.checkpoint.shard_writer.staged_path", lambda *_, **__: tmp_path / "elsewhere"
    )

    with pytest.raises(tm.CheckpointError, match="all replicas must share the output of the chief"):
        servers.checkpoint()
    assert not list(tmp_path.glob("checkpoints/*"))
