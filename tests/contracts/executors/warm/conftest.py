"""Benches with a preloaded Python: one for each test, and one that lasts for a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core import file_locks
from executors.process import warm
from tests.contracts.executors.warm.bench import WarmBench, clear


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    """A parent is heard however busy the machine is; a job would rather be executed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm, "HELLO_S", 60.0)
        patch.setattr(warm, "ANSWER_S", 60.0)
        yield


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., WarmBench]]:
    benches: list[WarmBench] = []

    def build(**limits: Any) -> WarmBench:
        benches.append(WarmBench(tmp_path / f"bench{len(benches)}", **limits))
        return benches[-1]

    yield build
    for bench in benches:
        clear(bench)


@pytest.fixture
def bench(make: Callable[..., WarmBench]) -> WarmBench:
    return make()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmBench]:
    bench = WarmBench(tmp_path_factory.mktemp("warm") / "bench")
    yield bench
    clear(bench)


@pytest.fixture
def lasting(shared: WarmBench) -> WarmBench:
    """A bench with a parent, for tests that leave it as it is. Somebody may have changed what this Python finds
    since.
    """
    if not any(map(file_locks.is_locked, shared.run_dir.glob("warm/*/torch/lock"))):
        shared.warm_up()
    return shared
