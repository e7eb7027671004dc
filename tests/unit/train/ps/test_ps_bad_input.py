"""What is wrong is named, and nobody waits for ever."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trainmaster_train as tm

torch = pytest.importorskip("torch")

import zmq  # noqa: E402
from trainmaster_train.ps import (  # noqa: E402  # noqa: E402
    DeadlineError,
    NonFiniteGradientError,
    Options,
    ParameterServerError,
    RefusedError,
    keeping,
    load_model,
    shard,
)
from trainmaster_train.ps.errors import LostError  # noqa: E402
from trainmaster_train.ps.wire import PROTOCOL, Seal, WireError, job_key, plain  # noqa: E402

from tests.unit.train.ps.loopback import (  # noqa: E402
    WITHIN_S,
    Cluster,
    full_disk,
    loss_of,
    make_model,
    sgd,
    step,
    values_of,
)


def wider() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(8, 60), torch.nn.ReLU(), torch.nn.Linear(60, 3))


def test_another_model_is_refused_with_the_tensor_that_differs(cluster: Callable[..., Cluster]) -> None:
    job = cluster(2)

    with pytest.raises(
        RefusedError, match=r"worker 0 has another model than ps 0: `0.weight` is 50×8 here and 60×8 there"
    ):
        job.join(model=wider())

    model, servers = job.join()
    step(model, servers, 1)
    assert servers.version == 1


def test_other_options_and_another_layout_are_refused(cluster: Callable[..., Cluster]) -> None:
    job = cluster(2)
    with pytest.raises(RefusedError, match="wants mode sync and wire full, ps 0 has async and full"):
        job.join(mode="sync")
    job.addresses = job.addresses[:1]
    with pytest.raises(RefusedError, match="you see 1 ps and this is one of 2"):
        job.join()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_gradient_that_is_no_number_names_worker_and_tensor(
    cluster: Callable[..., Cluster], bad: float, overlap: bool
) -> None:
    job = cluster(2, Options(overlap=overlap), workers=2)
    model, servers = job.join(0)
    _, other = job.join(1)
    before = values_of(model).clone()

    handle = model[2].bias.register_hook(lambda gradient: gradient * bad)
    with pytest.raises(
        NonFiniteGradientError, match=r"^worker 0, own step 0, update 0: the gradient of `2.bias` holds"
    ):
        step(model, servers, 1)
    handle.remove()

    other.pull()
    assert torch.equal(values_of(other.model), before), "nothing of it was applied"
    step(model, servers, 1)
    assert servers.versions == (1, 1)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("shared_memory", [False, True])
def test_nothing_of_a_gradient_with_nan_comes_with_a_later_push(
    cluster: Callable[..., Cluster], *, overlap: bool, shared_memory: bool
) -> None:
    options = Options(overlap=overlap, shared_memory=shared_memory)
    model, servers = cluster(2, options).join()
    alone = make_model()
    update = sgd(alone)
    handle = model[2].weight.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(NonFiniteGradientError):
        step(model, servers, 1)
    handle.remove()

    model.zero_grad()  # the model's own, as a script does that catches the error
    loss_of(model, 2).backward()
    servers.step()
    loss_of(alone, 2).backward()
    update.step()

    torch.testing.assert_close(values_of(model), values_of(alone))
    assert servers.versions == (1, 1)


def test_a_wrong_token_is_named_at_once_and_hurts_nobody(
    cluster: Callable[..., Cluster], capfd: pytest.CaptureFixture[str]
) -> None:
    job = cluster()
    model, servers = job.join()

    with pytest.raises(WireError, match="does not take this replica's token"):
        job.join(1, key=b"another key")
    step(model, servers, 1)

    assert "with a wrong token knocked" in capfd.readouterr().out


def test_who_passes_the_gate_without_the_key_gets_no_further(
    cluster: Callable[..., Cluster], capfd: pytest.CaptureFixture[str]
) -> None:
    from trainmaster_train.ps.wire import gate_password

    from tests.unit.train.ps.loopback import KEY

    job = cluster()
    model, servers = job.join()
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.plain_username, stranger.plain_password = b"x", gate_password(KEY)
        stranger.connect(f"tcp://{job.addresses[0]}")
        stranger.send(plain({"nonce": "00" * 32, "protocol": PROTOCOL}))
        assert stranger.poll(int(WITHIN_S * 1000))
        assert "proof" in stranger.recv().decode()
        stranger.send(b"0" * 64)
        for hostile in (b"", b"\xff", b"[1]", b"{}", b'{"nonce": 3}', b'{"nonce": "00", "protocol": 1}', b"[" * 50_000):
            stranger.send_multipart([hostile, b"more"])
        stranger.send(plain({"nonce": "00" * 32, "protocol": PROTOCOL + 1}))
        step(model, servers, 1)
        step(model, servers, 2)

    out = capfd.readouterr().out
    assert "somebody is cut off: it does not know this attempt's token" in out
    assert servers.version == 2


JOIN = {"worker": 1, "who": "worker 1", "chief": False, "ps": 1, "mode": "async", "wire": "full", "signature": {}}


@pytest.mark.parametrize(
    ("header", "frames"),
    [
        ({"op": "push"}, []),
        ({"op": "push", "version": 0, "blocks": [7], "exponents": [0]}, [b"1234"]),
        ({"op": "push", "version": 0, "blocks": [0], "exponents": [0]}, []),
        ({"op": "push", "version": 0, "blocks": [0], "exponents": [0]}, [b"123"]),
        ({"op": "rows", "table": "nowhere"}, [b"12345678"]),
        ({"op": "erase"}, []),
        ({"op": "push", "version": 0, "blocks": [], "exponents": [], "last": True}, []),
        ({"op": "push", "version": float("inf"), "blocks": [], "exponents": []}, []),
        ({"op": "join", **JOIN, "signature": [1]}, []),
        ({"op": "join", **JOIN, "signature": {"tensors": [1]}}, []),
        ({"op": "join", **JOIN, "worker": float("inf")}, []),
        ({"op": "join", **JOIN, "worker": 10**15}, []),
        ({"op": "fill", "table": ["unhashable"], "begin": 0}, [b"1234"]),
        ({"op": "share", "turns": 0}, []),
        ({"op": "share", "turns": 1}, []),
        ({"op": "push", "version": 0, "blocks": [], "exponents": [], "last": True, "shared": 7}, []),
    ],
)
def test_a_request_that_makes_no_sense_ends_at_most_its_own_connection(
    cluster: Callable[..., Cluster], header: dict[str, Any], frames: list[bytes]
) -> None:
    job = cluster(workers=2)
    model, servers = job.join(0)
    _, other = job.join(1)
    other._fleet.connections[0].send(header, frames)

    for number in range(3):
        step(model, servers, number)
    assert servers.version == 3


def test_first_values_of_a_wrong_size_are_refused_in_words(cluster: Callable[..., Cluster]) -> None:
    job = cluster(make=lambda: torch.nn.Embedding(4, 3, sparse=True), optimizer=plain_sgd)
    job.servers[0]._updates.is_filled = True
    _, servers = job.join()
    job.servers[0]._updates.is_filled = False
    connection = servers._fleet.connections[0]

    number = connection.send({"op": "fill", "table": "weight", "begin": 0}, [b"1234" * 4])

    with pytest.raises(RefusedError, match=r"a request that makes no sense \(RuntimeError: .*size"):
        connection.answer(number, WITHIN_S, "the first values")
    job.servers[0]._updates.is_filled = True
    servers.pull(tables=True)


def plain_sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_who_sends_more_than_any_message_holds_is_cut_off(cluster: Callable[..., Cluster]) -> None:
    job = cluster(workers=2)
    model, servers = job.join(0)
    _, other = job.join(1)
    connection = other._fleet.connections[0]

    number = connection.send({"op": "pull"}, [bytes(18 << 20)])

    with pytest.raises(LostError, match=r"ps 0 at .* is gone"):
        connection.answer(number, WITHIN_S, "a pull")
    step(model, servers, 1)
    assert servers.version == 1


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


def test_who_waits_for_one_ps_hears_why_another_one_ends(cluster: Callable[..., Cluster]) -> None:
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


def test_a_changed_repeated_or_reordered_header_is_no_header() -> None:
    one, other = Seal(b"k", b"n", is_server=False), Seal(b"k", b"n", is_server=True)
    first, second = one.close({"op": "pull"}), one.close({"op": "bye"})
    with pytest.raises(WireError, match="out of order"):
        other.open(second, 0)
    assert other.open(first, 0)["op"] == "pull"
    for bad in (first, second[:-1] + b" ", b"", first[::-1]):
        with pytest.raises(WireError, match="seal is wrong"):
            other.open(bad, 0)
    with pytest.raises(WireError, match="more or fewer frames"):
        other.open(second, 1)
    with pytest.raises(WireError, match="seal is wrong"):  # its own, sent back
        one.open(first, 0)


def test_a_ps_that_is_not_there_is_named(cluster: Callable[..., Cluster]) -> None:
    job = cluster(2)
    job.stop(1)

    with pytest.raises(DeadlineError, match=rf"worker 0: ps 1 at {job.addresses[1]} did not come"):
        job.join(join_timeout_s=0.5)
    job.start(1)


def test_without_the_chief_the_others_say_whom_they_wait_for(cluster: Callable[..., Cluster]) -> None:
    job = cluster(workers=2)

    with pytest.raises(DeadlineError, match=r"it waits for the first values of the chief \(worker 0\)"):
        job.join(1, join_timeout_s=3.0)


def test_a_synchronous_step_says_who_is_missing(cluster: Callable[..., Cluster]) -> None:
    job = cluster(1, Options(mode="sync"), workers=3)
    model, servers = job.join(0, step_timeout_s=4.0)
    job.join(1)

    with pytest.raises(
        DeadlineError,
        match=r"worker 0's step 0.*within 4 s; it waits for worker 1 \(still computing\), worker 2 \(never came\)",
    ):
        step(model, servers, 1)


def test_a_ps_that_nobody_visits_ends(cluster: Callable[..., Cluster]) -> None:
    job = cluster(1, Options(idle_timeout_s=0.1), workers=2)
    job.threads[0].join(WITHIN_S)

    assert (
        str(job.errors[0]) == "ps 0: no worker was there for 0 s; the first values of the chief (worker 0) stayed away"
    )


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
        ("bf16", "async", "trainmaster_train.ps.answers.Shadow", "the pull of worker 0"),
        ("full", "async", "trainmaster_train.ps.snapshots.Copy", "the pull of worker 0"),
        ("full", "async", "trainmaster_train.ps.codec.Codec.decode", "the push of worker 0"),
        ("full", "sync", "trainmaster_train.ps.rounds.Rounds._gather", "an update"),
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
    layout = layout_for(model)

    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: not enough memory")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(MemoryError, match="0 MiB of values"):
        shard.Shard(layout, sgd(model), 0, 1)


def layout_for(model: Any) -> Any:
    from trainmaster_train.ps.layout import layout_of

    return layout_of(model, sgd(model))


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


def test_a_checkpoint_of_another_model_is_named(cluster: Callable[..., Cluster]) -> None:
    job = cluster()
    model, servers = job.join()
    step(model, servers, 1)
    path = servers.checkpoint()

    with pytest.raises(tm.CheckpointError, match=r"another model: `0.weight` is 60×8 here and 50×8 there"):
        keeping.restore_shard(shard.Shard(layout_for(wider()), sgd(wider()), 0, 1), path)
    with pytest.raises(tm.CheckpointError, match=r"its `0.weight` is \[50, 8\], this one's \[60, 8\]"):
        load_model(wider(), path)
    (path / "shard-00000-of-00001.pt").rename(path / "shard-00000-of-00002.pt")
    with pytest.raises(tm.CheckpointError, match="does not hold all shards"):
        load_model(make_model(), path)


def test_the_key_is_the_token_of_the_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PS_KEY", "by hand")
    by_hand = job_key(None)
    (tmp_path / "token").write_text("tma_1\n")
    assert job_key(tmp_path / "token") != by_hand
    monkeypatch.delenv("PS_KEY")
    with pytest.raises(ParameterServerError, match="set PS_KEY"):
        job_key(None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mode": "fast"}, "mode: 'fast' is not one of async, sync"),
        ({"wire": "int8"}, "wire: 'int8' is not one of"),
        ({"backup_workers": 1}, "backup_workers: has no meaning with mode='async'"),
        ({"mode": "sync", "max_staleness": 3}, "max_staleness: has no meaning with mode='sync'"),
        ({"mode": "sync", "prefetch": True}, "prefetch: has no meaning"),
        ({"topk_ratio": 0.0}, "topk_ratio: 0.0"),
        ({"warmup_updates": -1}, "warmup_updates: -1 is negative"),
        ({"checkpoint_every": 0}, "checkpoint_every: 0 is too small"),
        ({"keep_checkpoints": 0}, "keep_checkpoints: 0"),
        ({"step_timeout_s": 0}, "step_timeout_s: 0 is no time"),
    ],
)
def test_options_that_contradict_themselves_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Options(**wrong)


def test_an_address_that_is_taken_is_named(cluster: Callable[..., Cluster]) -> None:
    job = cluster()
    job.stop(0)
    port = int(job.addresses[0].rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ParameterServerError, match="ps 0 cannot listen at"):
        job.start(0)
    job.start(0)


def test_the_deadline_of_a_lost_ps_holds_too(cluster: Callable[..., Cluster]) -> None:
    job = cluster()
    model, servers = job.join(join_timeout_s=1.0)
    loss_of(model, 1).backward()
    job.stop(0)

    with pytest.raises(DeadlineError, match=r"ps 0 at .* did not come, after 1 s of waiting"):
        servers.step()
    job.start(0)
