from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from trainmaster_train.context import Context  # noqa: E402
from trainmaster_train.ps import DeadlineError, Options  # noqa: E402
from trainmaster_train.ps.roles import StopSignal, evaluate_checkpoints  # noqa: E402

from tests.unit.train.ps.loopback import KEY, Cluster, flip_a_bit, make_model, step, together, values_of  # noqa: E402


def test_an_evaluator_sees_the_last_checkpoint_and_ends_with_the_training(
    cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINMASTER_REPORT_FILE", str(tmp_path / "reports"))
    job = cluster(2)
    model, servers = job.join()
    other = make_model(seed=50)
    seen: list[Any] = []
    first = threading.Event()

    def look() -> dict[str, float]:
        assert not torch.is_grad_enabled()
        seen.append(values_of(other).clone())
        first.set()
        return {"accuracy": 0.5}

    def evaluator() -> None:
        context = Context(role="evaluator", rank=None, peers={"ps": job.addresses})
        evaluate_checkpoints(other, look, context=context, key=KEY, options=Options(), stopped=StopSignal())

    def chief() -> None:
        step(model, servers, 1)
        servers.checkpoint()
        assert first.wait(60)
        step(model, servers, 2)
        servers.checkpoint()
        servers.close()

    together(evaluator, chief)

    assert torch.equal(seen[-1], values_of(model))
    reports = [json.loads(line) for line in (tmp_path / "reports").read_text().splitlines()]
    evaluations = [report for report in reports if "eval_accuracy" in report.get("metrics", {})]
    assert [report["step"] for report in evaluations] == [1, 2]


@pytest.mark.parametrize("is_short", [True, False])
def test_an_evaluator_passes_over_a_damaged_checkpoint(
    cluster: Callable[..., Cluster], capfd: pytest.CaptureFixture[str], *, is_short: bool
) -> None:
    job = cluster(1)
    model, servers = job.join()
    step(model, servers, 1)
    servers.checkpoint()
    whole = values_of(model).clone()
    step(model, servers, 2)
    file = servers.checkpoint() / "shard-00000-of-00001.pt"
    if is_short:
        os.truncate(file, 100)
    else:
        flip_a_bit(file, job.servers[0]._shard)
    servers.close()
    other = make_model(seed=50)
    seen: list[Any] = []

    def look() -> dict[str, float]:
        seen.append(values_of(other).clone())
        return {"accuracy": 0.5}

    context = Context(role="evaluator", rank=None, peers={"ps": job.addresses})
    evaluate_checkpoints(other, look, context=context, key=KEY, options=Options(), stopped=StopSignal())

    assert len(seen) == 1
    assert torch.equal(seen[0], whole)
    assert f"{file}: is damaged" in capfd.readouterr().out


def test_an_evaluator_without_a_training_ends(cluster: Callable[..., Cluster]) -> None:
    job = cluster(1)
    job.stop(0)
    context = Context(role="evaluator", rank=None, peers={"ps": job.addresses})

    with pytest.raises(DeadlineError, match=r"the training is not running: ps 0 at .* did not come"):
        evaluate_checkpoints(
            make_model(), dict, context=context, key=KEY, options=Options(idle_timeout_s=0.1), stopped=StopSignal()
        )
    job.start(0)
