"""A ps writes its shard beside its serving: one write at a time, and each is answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from trainmaster_train.checkpoint import stage_checkpoint

torch = pytest.importorskip("torch")

from trainmaster_train.ps import Options  # noqa: E402
from trainmaster_train.ps.checkpoint import shard_checkpoint, shard_writer  # noqa: E402
from trainmaster_train.ps.checkpoint.shard_writer import ShardWriter  # noqa: E402
from trainmaster_train.ps.layout import layout_of  # noqa: E402
from trainmaster_train.ps.server import server  # noqa: E402
from trainmaster_train.ps.server.sessions import WorkerRequest, WorkerSession  # noqa: E402
from trainmaster_train.ps.server.shard import Shard  # noqa: E402

from tests.unit.train.ps.loopback import WITHIN_S, Cluster, make_model, sgd, step  # noqa: E402


def request_of(step: int) -> WorkerRequest:
    folder = stage_checkpoint(step)
    header = {"op": "save", "id": 1, "step": step, "version": None, "directory": str(folder.parent)}
    return WorkerRequest(cast("WorkerSession", None), header, [])


def writer_of(kind: type[ShardWriter] = ShardWriter) -> tuple[ShardWriter, threading.Event]:
    woken = threading.Event()
    model = make_model()
    return kind(Shard(layout_of(model, sgd(model)), sgd(model), 0, 1), woken.set), woken


def test_what_happens_before_a_write_is_answered_begins_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[Path] = []

    def write(folder: Path, *_: Any) -> tuple[str, str]:
        writes.append(folder)
        return "shard", f"hash {len(writes)}"

    class Interrupted(ShardWriter):
        def _answer(self, answer: dict[str, Any]) -> None:
            self.proceed()  # as a push would that comes just now
            super()._answer(answer)

    monkeypatch.setattr(shard_writer, "write_shard", write)
    one, woken = writer_of(Interrupted)
    one.ask(request_of(1), 0.0)
    one.proceed()
    assert woken.wait(WITHIN_S)
    one.proceed()
    answers = one.answers()
    one.proceed()

    assert [answer["sha256"] for _, answer in answers] == ["hash 1"]
    assert len(writes) == 1
    one.ask(request_of(2), 0.0)  # the next one is taken again
    woken.clear()
    one.proceed()
    assert woken.wait(WITHIN_S)
    assert [answer["sha256"] for _, answer in one.answers()] == ["hash 2"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OSError(28, "No space left on device"), "No space left on device"), (MemoryError(), "MemoryError")],
)
def test_a_write_that_fails_is_answered_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    one, woken = writer_of()

    def write(*_: Any) -> None:
        raise error

    monkeypatch.setattr(shard_writer, "write_shard", write)
    one.ask(request_of(1), 0.0)
    one.proceed()
    assert woken.wait(WITHIN_S)

    ((_, answer),) = one.answers()
    assert answer["refused"].startswith("ps 0 cannot write its shard to ")
    assert answer["refused"].endswith(f": {reason}")


def test_a_written_shard_is_answered_without_waiting_for_a_tick(
    cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "TICK_S", 10 * WITHIN_S)
    write = shard_checkpoint.write_shard

    def later(*arguments: Any) -> Any:
        threading.Event().wait(0.3)  # so that the ps is back in its wait: the answer comes after the message
        return write(*arguments)

    monkeypatch.setattr(shard_writer, "write_shard", later)
    model, servers = cluster(1, Options(step_timeout_s=WITHIN_S)).join()
    step(model, servers, 1)

    since = time.monotonic()
    servers.checkpoint()

    assert time.monotonic() - since < WITHIN_S
