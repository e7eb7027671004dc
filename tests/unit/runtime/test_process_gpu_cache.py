"""GPUs that come and go while the platform runs."""

from __future__ import annotations

from executors.base import Gpu
from executors.process.machine import GpuCache

A, B = Gpu("0", "a100", 1), Gpu("1", "a100", 1)


def test_gpus_are_looked_for_again_after_half_a_minute_and_not_before() -> None:
    answers = [(A, B), (A,), ()]
    now = 1000.0
    cache = GpuCache(lambda: answers.pop(0), monotonic=lambda: now)
    assert cache() == (A, B)
    now += 29.9
    assert cache() == (A, B)
    now += 0.2
    assert cache() == (A,)
    assert cache() == (A,)
    now += 30
    assert cache() == ()
