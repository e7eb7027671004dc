"""Compressed values: what is lost now comes later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from trainmaster_train.ps import Options  # noqa: E402
from trainmaster_train.ps.wire.codec import Codec, largest  # noqa: E402
from trainmaster_train.ps.wire.messages import WireError  # noqa: E402

from tests.unit.train.ps.loopback import Cluster, step, values_of  # noqa: E402


def there_and_back(codec: Codec, values: Any, rest: Any = None) -> Any:
    frames, exponent = codec.encode(values.clone(), rest)
    return codec.decode(frames, values.numel(), values.dtype, exponent)


@pytest.mark.parametrize(("wire", "error"), [("full", 0.0), ("bf16", 2**-8), ("fp16", 2**-10)])
@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1.0, 1e6, 1e30])
def test_values_come_back_to_within_the_wires_precision(wire: str, error: float, scale: float) -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1)) * scale

    back = there_and_back(Codec(wire, 1.0), values)

    large = values.abs() > values.abs().max() / 100
    assert ((back - values).abs()[large] <= values.abs()[large] * error).all()
    assert torch.isfinite(back).all()


def test_the_smallest_numbers_need_no_factor_that_float32_does_not_have() -> None:
    values = torch.tensor([1e-40, -2e-44, 0.0])
    codec = Codec("fp16", 1.0)

    frames, exponent = codec.encode(values)

    assert exponent <= 126
    assert torch.isfinite(torch.frombuffer(frames[0], dtype=torch.float16)).all()
    assert abs(float(codec.decode(frames, 3, torch.float32, exponent)[0]) - 1e-40) < 1e-42


@pytest.mark.parametrize("size", [1, 100, 100_000])
def test_topk_sends_the_largest_and_keeps_the_rest(size: int) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(2))
    rest = torch.zeros(size)
    codec = Codec("topk", 0.05)

    back = there_and_back(codec, values, rest)

    sent = back != 0
    assert max(1, size // 40) <= int(sent.sum()) <= max(1, size // 10)
    assert values.abs()[sent].min() >= values.abs()[~sent].max() if size > 1 else True
    torch.testing.assert_close(back + rest, values)


def test_topk_of_equal_values_is_no_more_than_requested() -> None:
    for values in (torch.zeros(50_000), torch.ones(50_000)):
        assert len(largest(values, 500)) == 500


def test_what_topk_keeps_comes_with_later_gradients() -> None:
    codec = Codec("topk", 0.1)
    rest = torch.zeros(50)
    gradient = torch.linspace(0.1, 1.0, 50)

    total = sum(there_and_back(codec, gradient, rest) for _ in range(200))

    torch.testing.assert_close(total / 200, gradient, rtol=0.1, atol=0.02)


def test_other_dtypes_are_sent_in_full() -> None:
    values = torch.randn(10, dtype=torch.float64)

    for wire in ("bf16", "fp16", "topk"):
        assert torch.equal(there_and_back(Codec(wire, 0.1), values), values)


def test_frames_that_do_not_fit_are_refused() -> None:
    codec = Codec("topk", 0.5)
    (indices, values), _ = codec.encode(torch.ones(4))
    with pytest.raises(WireError, match="an index outside of its block"):
        codec.decode(
            [memoryview(torch.tensor([9, 9], dtype=torch.int32).numpy()).cast("B"), values], 4, torch.float32, 0
        )
    with pytest.raises(WireError, match="a frame of 4 bytes where 2 values"):
        codec.decode([indices[:4], values], 4, torch.float32, 0)
    with pytest.raises(WireError, match="a frame of 4 bytes where 4 values"):
        Codec("full", 1.0).decode([values], 4, torch.float32, 0)


@pytest.mark.parametrize(("wire", "tolerance"), [("bf16", 0.02), ("fp16", 0.005), ("topk", 0.3)])
@pytest.mark.parametrize("ps", [1, 2])
def test_compressed_training_comes_near_to_the_full_one(
    cluster: Callable[..., Cluster], wire: str, tolerance: float, ps: int
) -> None:
    def sgd(model: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.05)

    losses = {}
    for name in (wire, "full"):
        model, servers = cluster(ps, Options(wire=name, topk_ratio=0.1), optimizer=sgd).join()
        losses[name] = [step(model, servers, number) for number in range(80)][-1]

    assert losses[wire] == pytest.approx(losses["full"], rel=tolerance)


def test_a_worker_and_its_ps_agree_on_what_the_worker_holds(cluster: Callable[..., Cluster]) -> None:
    job = cluster(1, Options(wire="topk", topk_ratio=0.2))
    model, servers = job.join()
    for number in range(5):
        step(model, servers, number)

    (session,) = job.servers[0]._connections.sessions.values()
    assert torch.equal(torch.cat(session.replica._values_at_worker), values_of(model))
    servers.pull()  # in full
    assert torch.equal(torch.cat(job.servers[0]._shard.values), values_of(model))
