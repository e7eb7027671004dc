"""Memory that a worker shares with the ps of its own machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from trainmaster_train.ps import Options, layout  # noqa: E402
from trainmaster_train.ps.server.aggregation import Push  # noqa: E402
from trainmaster_train.ps.wire import shared_memory  # noqa: E402

from tests.unit.train.ps.loopback import Cluster, loss_of, make_model, sgd, step, values_of  # noqa: E402
from tests.unit.train.ps.test_ps_training import alone  # noqa: E402

pytestmark = pytest.mark.skipif(not shared_memory.FdReceiver().name, reason="this system has no abstract sockets")


def sent_frames(job: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each message's frames that the first ps sends from now on."""
    found: list[int] = []
    listener = job.servers[0]._listener
    send = listener.send

    def noted(session: Any, header: Any, frames: Any = (), **more: Any) -> Any:
        found.append(sum(frame.nbytes for frame in frames))
        return send(session, header, frames, **more)

    monkeypatch.setattr(listener, "send", noted)
    return found


@pytest.mark.parametrize("options", [Options(), Options(overlap=True), Options(mode="sync")])
def test_no_values_travel_on_one_machine(
    cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, options: Options
) -> None:
    job = cluster(1, options)
    frames = sent_frames(job, monkeypatch)
    model, servers = job.join()

    for number in range(4):
        step(model, servers, number)

    assert sum(frames) == 0
    torch.testing.assert_close(values_of(model), values_of(alone(make_model, sgd, 4)))


@pytest.mark.parametrize("options", [Options(shared_memory=False), Options(wire="bf16")])
def test_values_travel_where_that_is_wanted_and_where_they_are_compressed(
    cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, options: Options
) -> None:
    job = cluster(1, options)
    frames = sent_frames(job, monkeypatch)
    model, servers = job.join()

    step(model, servers, 0)

    assert sum(frames) > 0


def test_one_worker_shares_and_another_one_of_the_same_job_does_not(cluster: Callable[..., Cluster]) -> None:
    job = cluster(2, Options(max_staleness=0), workers=2)
    model, servers = job.join(0)
    other_model, other = job.join(1, shared_memory=False)

    for number in range(3):
        step(model, servers, number)
        other.pull()
        step(other_model, other, number)
        servers.pull()

    assert torch.equal(values_of(model), values_of(other_model))
    torch.testing.assert_close(values_of(model), values_of(alone_twice(3)))


def alone_twice(steps: int) -> Any:
    model = make_model()
    optimizer = sgd(model)
    for number in range(2 * steps):
        optimizer.zero_grad()
        loss_of(model, number // 2).backward()
        optimizer.step()
    return model


def test_a_ps_that_is_back_is_given_the_memory_again(
    cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = cluster()
    model, servers = job.join()
    step(model, servers, 0)
    path = servers.checkpoint()
    job.stop(0)
    job.start(0, path)
    step(model, servers, 1)  # finds out, and joins again
    frames = sent_frames(job, monkeypatch)

    step(model, servers, 2)

    assert frames
    assert sum(frames) == 0


def test_values_stay_right_when_a_memory_is_not_to_be_had(
    cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any) -> int:
        raise OSError("no memory")

    monkeypatch.setattr(os, "memfd_create", none)
    model, servers = cluster().join()

    for number in range(3):
        step(model, servers, number)

    torch.testing.assert_close(values_of(model), values_of(alone(make_model, sgd, 3)))


def test_memory_of_an_unknown_process_is_never_taken() -> None:
    model = make_model()
    whole = layout.layout_of(model, sgd(model))
    socket_name = shared_memory.FdReceiver()
    mine, strange = shared_memory.create_shared_memory(whole, 1), shared_memory.create_shared_memory(whole, 1)
    assert mine is not None
    assert strange is not None
    try:
        for number in range(300):
            shared_memory.send_descriptor(strange, socket_name.name, f"guess {number}".encode())
        assert socket_name.take(b"the ticket") is None

        assert shared_memory.send_descriptor(mine, socket_name.name, b"the ticket")
        taken = socket_name.take(b"the ticket")
        assert taken is not None
        seen = shared_memory.map_shared_memory(taken, whole, 1)
        assert seen is not None
        mine.gradients[0][0].fill_(7.0)
        assert bool((seen.gradients[0][0] == 7.0).all())
        assert socket_name.take(b"the ticket") is None
    finally:
        socket_name.close()
        mine.close()
        strange.close()
    assert not shared_memory.send_descriptor(mine, socket_name.name, b"nobody is there")


@pytest.mark.parametrize("kind", ["smaller", "may shrink", "no memory"])
def test_memory_that_could_end_the_ps_is_not_mapped(kind: str) -> None:
    model = make_model()
    whole = layout.layout_of(model, sgd(model))
    if kind == "smaller":
        memory = shared_memory.create_shared_memory(whole, 1)
        assert memory is not None
        descriptor = os.dup(memory.descriptor)
        memory.close()
    elif kind == "may shrink":
        descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, shared_memory._size(whole, 2))
    else:
        descriptor, write = os.pipe()
        os.close(write)

    assert shared_memory.map_shared_memory(descriptor, whole, 2) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_what_a_lost_worker_sent_and_was_not_applied_is_forgotten(cluster: Callable[..., Cluster]) -> None:
    job = cluster(1, Options(), workers=2)
    job.join(0)
    updates = job.servers[0]._updates
    job.servers[0]._shard_writer.hold(time.monotonic())  # nothing is applied meanwhile
    for worker in (0, 1, 0):
        updates.push(Push(worker, 0, [], {}))

    updates.drop_pushes(0)

    assert [push.worker for push in updates._ready] == [1]
    updates.drop_pushes(1)


def test_only_addresses_of_this_machine_are_here() -> None:
    assert shared_memory.is_local_address("127.0.0.1:2222")
    assert not shared_memory.is_local_address("192.0.2.1:2222")  # kept free for documents
    assert not shared_memory.is_local_address("nonsense")
