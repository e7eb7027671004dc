"""Where a worker's step goes, as the step timer tells it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

from trainmaster_train import steps
from trainmaster_train.ps import Options

from tests.unit.train.ps.loopback import Cluster, step


@pytest.mark.parametrize("options", [Options(), Options(prefetch=True, overlap=True)], ids=["plain", "hidden"])
def test_the_parts_of_each_step_sum_to_it(
    cluster: Callable[..., Cluster], options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = steps.StepTimer()
    monkeypatch.setattr(steps, "timer", lambda: timer)
    model, servers = cluster(2, options).join()
    step(model, servers, 0)  # starts the clock

    for number in range(1, 5):
        step(model, servers, number)
        last = timer.last
        assert last is not None
        assert sum(last.parts.values()) == pytest.approx(last.seconds, rel=0.02)
        assert last.parts["compute"] > 0
        assert last.parts["ps_wait"] > 0
        assert last.parts["communication"] > 0
        assert last.bytes_sent > 0
        assert len(last.staleness) == 1
