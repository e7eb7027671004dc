from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import trainmaster_train as tm
from trainmaster_train.checkpoint import saver

torch = pytest.importorskip("torch")


def test_a_volume_that_hangs_is_reported_and_blocks_no_step(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    freed = threading.Event()
    monkeypatch.setattr(saver, "write_state", lambda *_, **__: (freed.wait(60), alone)[1])
    hung = tm.Saver(timeout_s=0.05)
    hung.save({"x": 1}, 1)
    try:
        with pytest.raises(
            tm.CheckpointError, match=r"still being written after 0\.05 s: see whether its volume hangs"
        ):
            hung.save({"x": 2}, 2)
        with pytest.raises(tm.CheckpointError, match="still being written"):
            hung.close()
    finally:
        freed.set()


def written(saver: tm.Saver) -> Path | None:
    """Its last checkpoint, however long the volume takes once it goes on."""
    until_s = time.monotonic() + 60
    while True:
        try:
            return saver.wait()
        except tm.CheckpointNotWrittenError:
            assert time.monotonic() < until_s


def test_a_step_waits_for_the_copy_as_long_and_no_longer(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    freed = threading.Event()
    finish = saver.StateSnapshot.finish
    monkeypatch.setattr(saver.StateSnapshot, "finish", lambda snapshot: (freed.wait(60), finish(snapshot))[1])
    model = torch.nn.Linear(2, 2)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.ones(1, 2)).sum().backward()
    slow = tm.Saver(timeout_s=0.05)
    try:
        slow.save(model.state_dict(), 1, optimizer=optimizer)
        with pytest.raises(tm.CheckpointNotWrittenError, match=r"optimizer\.step\(\) has waited 0\.05 s for the copy"):
            optimizer.step()
        assert torch.equal(model.weight, before)
    finally:
        freed.set()
    assert written(slow) == alone / "checkpoints" / "step-00000001"
    optimizer.step()
    slow.close()
