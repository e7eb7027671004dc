from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("zmq")

from trainmaster_train.ps import Options  # noqa: E402

from tests.unit.train.ps.loopback import Cluster  # noqa: E402
from tests.unit.train.ps.processes import Gang  # noqa: E402


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
def gang(tmp_path: Path) -> Iterator[Callable[..., Gang]]:
    """``gang(workers, **options) -> Gang``, gone at the end."""
    made: list[Gang] = []

    def make(workers: int, **options: Any) -> Gang:
        made.append(Gang(tmp_path, workers, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
