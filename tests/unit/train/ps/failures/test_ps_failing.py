"""A ps that cannot go on says why to its workers; a full volume costs a checkpoint alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trainmaster_train as tm

torch = pytest.importorskip("torch")

from trainmaster_train.ps import Options, ParameterServerError  # noqa: E402
from trainmaster_train.ps.layout import layout_of  # noqa: E402
from trainmaster_train.ps.server import shard  # noqa: E402

from tests.unit.train.ps.loopback import WITHIN_S, Cluster, full_disk, loss_of, make_model, sgd, step  # noqa: E402


def test_an_update_that_fails_ends_the_ps_and_its_workers_with_the_reason(
    cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = cluster()
    model, servers = job.join()

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(job.servers[0]._shard._optimizer, "step", fail)
    wanted = r"ps 0 could not apply update 1 \(RuntimeError: no such kernel\); start again from the last checkpoint"
    with pytest.raises(ParameterServerError, match=wanted):
        step(model, servers, 1)
    job.threads[0].join(WITHIN_S)

    assert "no such kernel" in str(job.errors[0])


def test_a_worker_that_was_busy_when_a_ps_ended_hears_why(
    cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = cluster(workers=2)
    model, servers = job.join(0)
    busy, other = job.join(1)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(job.servers[0]._shard._optimizer, "step", fail)
    with pytest.raises(ParameterServerError, match="no such kernel"):
        step(model, servers, 1)
    job.threads[0].join(WITHIN_S)  # the connection is over by now, and nobody has looked at it

    with pytest.raises(ParameterServerError, match=r"ps 0 could not apply update 1 \(RuntimeError: no such kernel\)"):
        step(busy, other, 1)


def test_a_wait_for_one_ps_ends_with_the_reason_of_another(cluster: Callable[..., Cluster]) -> None:
    job = cluster(2, Options(mode="sync"), workers=2)
    model, servers = job.join(0)
    job.join(1)  # and makes no step: ps 0 does not answer

    def end() -> None:
        job.servers[1]._updates.proceed = broken
        job.servers[1]._wake()

    def broken() -> None:
        raise ParameterServerError("ps 1 has had enough")

    loss_of(model, 1).backward()
    timer = threading.Timer(0.2, end)
    timer.start()
    with pytest.raises(ParameterServerError, match=r"^ps 1 has had enough$"):
        servers.step()
    timer.join()


def test_a_ps_without_memory_is_named_to_its_workers(
    cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = cluster()
    model, servers = job.join()
    step(model, servers, 1)

    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr(job.servers[0]._shard._optimizer, "step", full)
    wanted = "ps 0 has no memory for the optimizer's state: give the ps more memory, or the job more ps"
    with pytest.raises(ParameterServerError) as found:
        step(model, servers, 2)
    job.threads[0].join(WITHIN_S)

    assert str(found.value) == wanted
    assert str(job.errors[0]) == wanted


@pytest.mark.parametrize(
    ("wire", "mode", "where", "what"),
    [
        ("bf16", "async", "trainmaster_train.ps.server.updates.WorkerReplica", "the pull of worker 0"),
        ("full", "async", "trainmaster_train.ps.server.sessions.SnapshotBuffer", "the pull of worker 0"),
        ("full", "async", "trainmaster_train.ps.wire.codec.Codec.decode", "the push of worker 0"),
        ("full", "sync", "trainmaster_train.ps.server.aggregation.GradientAggregator._gather", "an update"),
    ],
)
def test_a_ps_without_memory_for_anything_else_is_named_too(
    cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, wire: str, mode: str, where: str, what: str
) -> None:
    job = cluster(1, Options(wire=wire, mode=mode, shared_memory=False))

    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr(where, full)
    wanted = f"ps 0 has no memory for {what}: give the ps more memory, or the job more ps"
    with pytest.raises(ParameterServerError) as found:
        step(*job.join(), 1)
    job.threads[0].join(WITHIN_S)

    assert str(job.errors[0]) == wanted
    assert str(found.value) == wanted


def test_a_shard_that_finds_no_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    layout = layout_of(model, sgd(model))

    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: not enough memory")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(MemoryError, match="0 MiB of values"):
        shard.Shard(layout, sgd(model), 0, 1)


def test_a_full_volume_costs_a_checkpoint_and_not_the_training(
    cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model, servers = cluster(1, Options(checkpoint_every=2)).join()
    for number in range(2):
        step(model, servers, number)
    good = servers.checkpoint()

    monkeypatch.setattr(os, "write", full_disk)
    for number in range(4):
        step(model, servers, number)
    with pytest.raises(tm.CheckpointError, match="No space left on device"):
        servers.checkpoint()
    monkeypatch.undo()

    assert "training goes on" in capfd.readouterr().out
    assert [path for path in good.parent.iterdir() if path.name.startswith("step-")] == [good]
    assert servers.version == 6
