"""A ps that is lost and joined again knows nothing of what it was asked before: nobody waits for that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trainmaster_train as tm

torch = pytest.importorskip("torch")

from trainmaster_train.ps import Options  # noqa: E402
from trainmaster_train.ps.checkpoint import shard_checkpoint, shard_writer  # noqa: E402
from trainmaster_train.ps.server.server import ParameterServer  # noqa: E402
from trainmaster_train.ps.server.sessions import WorkerRequest  # noqa: E402

from tests.unit.train.ps.loopback import WITHIN_S, Cluster, loss_of, make_model, step, together  # noqa: E402

# Far longer than any of this takes, and short enough to end a test that waits in vain.
PATIENT = Options(step_timeout_s=WITHIN_S / 2, join_timeout_s=WITHIN_S)


@pytest.mark.parametrize("then", ["step", "pull", "checkpoint"])
def test_a_push_that_was_on_its_way_to_a_lost_ps_is_not_waited_for(cluster: Callable[..., Cluster], then: str) -> None:
    pushes: list[WorkerRequest] = []

    class Swallowing(ParameterServer):
        def _op_push(self, request: WorkerRequest) -> None:
            pushes.append(request)
            if len(pushes) == 2:
                self.stop()

    job = cluster(1, replace(PATIENT, prefetch=True), make_server=Swallowing)
    model, servers = job.join()

    def train() -> None:
        step(model, servers, 1)
        step(model, servers, 2)  # sent, while the first one's answer is waited for: then the ps is gone
        if then == "step":
            step(model, servers, 3)
            servers.pull()
        else:
            getattr(servers, then)()

    def restart() -> None:
        job.threads[0].join(WITHIN_S)
        job.make_server = ParameterServer
        job.start(0)

    together(train, restart)

    assert len(pushes) == 2
    assert servers.version == (1 if then == "step" else 0), "neither of the two is applied"


class Tabled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.table = torch.nn.Embedding(16, 8, sparse=True)
        self.body = make_model()

    def forward(self, inputs: Any) -> Any:
        return self.body(inputs + self.table(torch.arange(len(inputs))))


def test_rows_that_were_requested_before_a_loss_are_requested_again(cluster: Callable[..., Cluster]) -> None:
    job = cluster(2, PATIENT, make=Tabled)
    model, servers = job.join()
    loss_of(model, 1).backward()
    servers.prefetch(model.table, torch.arange(16))
    job.stop(1)
    job.start(1)

    servers.step()  # finds out
    step(model, servers, 2)

    assert servers.versions == (2, 1)


def test_a_ps_that_dies_while_it_writes_costs_that_checkpoint_alone(
    cluster: Callable[..., Cluster], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_writing = threading.Event()

    def write(folder: Path, state: Any, about: dict[str, Any]) -> tuple[str, str]:
        if about["ps"] == 1 and not is_writing.is_set():
            is_writing.set()
            threading.Event().wait()  # it never ends
        return shard_checkpoint.write_shard(folder, state, about)

    monkeypatch.setattr(shard_writer, "write_shard", write)
    job = cluster(2, replace(PATIENT, checkpoint_every=2))
    model, servers = job.join()
    step(model, servers, 1)
    step(model, servers, 2)
    assert is_writing.wait(WITHIN_S)
    job.stop(1)
    job.start(1)
    for number in range(3, 6):
        step(model, servers, number)

    written = servers.checkpoint()

    out = capfd.readouterr().out
    assert f"ps 1 at {job.addresses[1]} was lost and came back meanwhile; training goes on" in out
    assert [path.name for path in tm.checkpoint.complete_checkpoints()] == ["step-00000004", written.name]
