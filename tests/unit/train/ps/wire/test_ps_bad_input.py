"""Another model, other options, gradients that are no numbers: each is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import trainmaster_train as tm

torch = pytest.importorskip("torch")

from trainmaster_train.ps import (  # noqa: E402
    NonFiniteGradientError,
    Options,
    ParameterServerError,
    RefusedError,
    load_model,
    run,
)
from trainmaster_train.ps.checkpoint import shard_checkpoint  # noqa: E402
from trainmaster_train.ps.layout import layout_of  # noqa: E402
from trainmaster_train.ps.server import shard  # noqa: E402

from tests.unit.train.ps.loopback import Cluster, loss_of, make_model, sgd, step, values_of  # noqa: E402


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


def test_a_checkpoint_of_another_model_is_named(cluster: Callable[..., Cluster]) -> None:
    job = cluster()
    model, servers = job.join()
    step(model, servers, 1)
    path = servers.checkpoint()
    other = wider()

    with pytest.raises(tm.CheckpointError, match=r"another model: `0.weight` is 60×8 here and 50×8 there"):
        shard_checkpoint.restore_shard(shard.Shard(layout_of(other, sgd(other)), sgd(other), 0, 1), path)
    with pytest.raises(tm.CheckpointError, match=r"its `0.weight` is \[50, 8\], this one's \[60, 8\]"):
        load_model(wider(), path)
    (path / "shard-00000-of-00001.pt").rename(path / "shard-00000-of-00002.pt")
    with pytest.raises(tm.CheckpointError, match="does not hold all shards"):
        load_model(make_model(), path)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_gradient_of_large_numbers_is_one(cluster: Callable[..., Cluster], *, overlap: bool) -> None:
    model, servers = cluster(1, Options(overlap=overlap)).join()
    handle = model[2].weight.register_hook(lambda gradient: torch.full_like(gradient, 3e38))

    step(model, servers, 1)
    handle.remove()

    assert servers.version == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mode": "fast"}, "mode is 'fast': give one of async, sync"),
        ({"wire": "int8"}, "wire is 'int8': give one of full, bf16, fp16, topk"),
        ({"wire": ["bf16"]}, "wire is ['bf16']: give one of full, bf16, fp16, topk"),
        ({"backup_workers": 1}, "backup_workers is 1: that has no meaning with mode='async'"),
        ({"mode": "sync", "max_staleness": 3}, "max_staleness is 3: that has no meaning with mode='sync'"),
        ({"mode": "sync", "prefetch": True}, "prefetch is True: that has no meaning with mode='sync'"),
        ({"overlap": "yes"}, "overlap is 'yes': give True or False"),
        ({"topk_ratio": 0.0}, "topk_ratio is 0.0: give a share above 0 and up to 1"),
        ({"warmup_updates": -1}, "warmup_updates is -1: give 0 or a whole number above it"),
        ({"max_staleness": "3"}, "max_staleness is '3': give None, 0 or a whole number above it"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0: give None, or a whole number of updates from 1 on"),
        ({"keep_checkpoints": 0}, "keep_checkpoints is 0: give a whole number from 1 on"),
        ({"step_timeout_s": 0}, "step_timeout_s is 0: give seconds above 0"),
        ({"join_timeout_s": float("nan")}, "join_timeout_s is nan: give seconds above 0"),
        (
            {"mode": "sync", "backup_workers": 2},
            "backup_workers is 2: the job has 2 workers, and a step must wait for at least one worker; give fewer",
        ),
    ],
)
@pytest.mark.parametrize("role", ["ps", "worker"])
def test_options_that_cannot_be_end_every_replica_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], message: str, role: str
) -> None:
    peers = {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2", "127.0.0.1:3"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": peers, "task": {"type": role, "index": 0}}))
    model = make_model()

    with pytest.raises(SystemExit) as end:
        run(model, sgd(model), lambda _: None, options=Options(**wrong))

    assert str(end.value).startswith(f"{role}-0: ps.Options: {message}")


def test_each_option_is_checked() -> None:
    anything = object()
    for field in fields(Options):
        with pytest.raises(ParameterServerError, match=rf"^ps\.Options: {field.name} is <object"):
            replace(Options(), **{field.name: anything}).check()
    Options().check(workers=1)
