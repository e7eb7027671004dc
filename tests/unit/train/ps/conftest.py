from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("zmq")

from trainmaster_train.ps import Options  # noqa: E402

from tests.unit.train.ps.loopback import WITHIN_S, Cluster  # noqa: E402


@pytest.fixture(autouse=True)
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("TRAINMASTER_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRAINMASTER_OUTPUT_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cluster() -> Iterator[Callable[..., Cluster]]:
    """``cluster(ps, options, **more) -> Cluster``, gone at the end."""
    made: list[Cluster] = []

    def make(ps: int = 1, options: Options | None = None, **more: Any) -> Cluster:
        made.append(Cluster(ps, options or Options(), **more))
        return made[-1]

    yield make
    for one in made:
        one.leave()


@pytest.fixture
def wait_for() -> Callable[..., None]:
    """``wait_for(condition, what, log)``: fails with the logs of ps and worker when it does not come."""

    def wait(condition: Callable[[], bool], what: str, log: Callable[[str], str]) -> None:
        deadline = time.monotonic() + 3 * WITHIN_S  # processes start and import torch meanwhile
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"not within {3 * WITHIN_S} s: {what}\n{log('ps')[-2000:]}\n{log('worker')[-2000:]}")
            time.sleep(0.05)

    return wait
