from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trainmaster_train as tm
from trainmaster_train.checkpoint import saver

pytest.importorskip("torch")


def test_a_volume_that_hangs_is_told_of_and_holds_nobody(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
