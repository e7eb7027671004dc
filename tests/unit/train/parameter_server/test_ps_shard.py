from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import trainmaster_train as tm


@pytest.fixture(autouse=True)
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("TRAINMASTER_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRAINMASTER_OUTPUT_DIR", str(tmp_path))
    return tmp_path


def make(shard: ModuleType, index: int = 0, count: int = 1, *, max_staleness: int = 4) -> Any:
    return shard.Shard(index, count, lr=0.5, momentum=0.5, max_staleness=max_staleness)


def vector(*values: float) -> Any:
    return np.array(values, np.float32)


@pytest.mark.parametrize("total", [1, 7, 9610, 2**31 + 5])
@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_slices_cover_all_parameters_and_are_equal_to_within_one(shard: ModuleType, total: int, count: int) -> None:
    slices = [shard.bounds(total, index, count) for index in range(count)]

    assert slices[0][0] == 0
    assert slices[-1][1] == total
    assert all(left[1] == right[0] for left, right in pairwise(slices))
    sizes = [end - begin for begin, end in slices]
    assert max(sizes) - min(sizes) <= 1


def test_the_optimizer_is_sgd_with_momentum(shard: ModuleType) -> None:
    ps = make(shard)
    ps.fill(vector(1, 1))

    assert np.array_equal(ps.push(vector(1, 0), 0)[2], vector(0.5, 1))
    assert np.array_equal(ps.push(vector(1, 0), 1)[2], vector(-0.25, 1))


def test_staleness_is_what_others_applied_between_pull_and_push(shard: ModuleType) -> None:
    ps = make(shard)
    ps.fill(vector(0))
    base, _ = ps.pull()

    assert [ps.push(vector(1), base)[1] for _ in range(3)] == [0, 1, 2]
    assert (ps.staleness.pushes, ps.staleness.largest) == (3, 2)
    assert "staleness mean 1.00" in str(ps.staleness)


def test_a_stale_gradient_moves_less(shard: ModuleType) -> None:
    moved = []
    for staleness in (1, 2, 4):
        ps = shard.Shard(0, 1, lr=1.0, momentum=0.0, max_staleness=10)
        ps.fill(vector(0))
        ps.version = staleness
        moved.append(float(ps.push(vector(-1), 0)[2][0]))

    assert moved == [1.0, 0.5, 0.25]


def test_a_gradient_that_is_too_stale_is_dropped_and_counted(shard: ModuleType) -> None:
    ps = make(shard, max_staleness=1)
    ps.fill(vector(0))
    ps.version = 2

    version, staleness, values = ps.push(vector(1), 0)

    assert (version, staleness, values[0]) == (2, 2, 0)
    assert ps.staleness.dropped == 1


def test_the_first_values_win(shard: ModuleType) -> None:
    ps = make(shard)
    ps.fill(vector(1))
    ps.fill(vector(2))

    assert ps.pull()[1][0] == 1


def test_a_ps_without_values_refuses_to_work(shard: ModuleType) -> None:
    for call in (lambda ps: ps.pull(), lambda ps: ps.push(vector(1), 0), lambda ps: ps.save(1)):
        with pytest.raises(tm_refused(), match="no values yet"):
            call(make(shard))


@pytest.mark.parametrize("gradient", [[1, 2, 3], [float("nan"), 0], [float("inf"), 0], []])
def test_a_gradient_that_would_spoil_the_values_is_refused(shard: ModuleType, gradient: list[float]) -> None:
    ps = make(shard)
    ps.fill(vector(1, 1))

    with pytest.raises(tm_refused(), match="2 finite numbers"):
        ps.push(vector(*gradient), 0)
    assert np.array_equal(ps.pull()[1], vector(1, 1))


def test_a_worker_with_another_model_or_layout_is_refused(shard: ModuleType) -> None:
    ps = make(shard, 1, 2)
    ps.fill(vector(1, 2, 3))
    ps.expect(6, 2)

    with pytest.raises(tm_refused(), match="holds 3 parameters where your model has 4"):
        ps.expect(8, 2)
    with pytest.raises(tm_refused(), match="you see 3 ps"):
        ps.expect(6, 3)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (1, 3), (3, 1), (2, 5)])
def test_a_checkpoint_is_read_by_any_number_of_ps(shard: ModuleType, before: int, after: int) -> None:
    values = np.arange(101, dtype=np.float32)
    tm.stage_checkpoint(3)
    for index in range(before):
        ps = make(shard, index, before)
        ps.fill(values[slice(*shard.bounds(101, index, before))])
        ps.push(np.zeros_like(ps.pull()[1]), 0)
        ps.save(3)
    path = tm.seal_checkpoint(3)

    restored = [make(shard, index, after) for index in range(after)]
    for ps in restored:
        ps.restore(path)

    assert np.array_equal(np.concatenate([ps.pull()[1] for ps in restored]), values)
    assert {ps.version for ps in restored} == {1}


def test_the_momentum_comes_back_too(shard: ModuleType) -> None:
    ps = make(shard)
    ps.fill(vector(1, 1))
    ps.push(vector(1, 0), 0)
    tm.stage_checkpoint(1)
    ps.save(1)
    restored = make(shard)
    restored.restore(tm.seal_checkpoint(1))

    assert np.array_equal(restored.push(vector(0, 1), 1)[2], ps.push(vector(0, 1), 1)[2])


def test_a_checkpoint_with_a_shard_missing_is_refused(shard: ModuleType) -> None:
    tm.stage_checkpoint(1)
    ps = make(shard, 0, 2)
    ps.fill(vector(1))
    ps.save(1)

    with pytest.raises(tm.CheckpointError, match="does not hold all shards"):
        make(shard).restore(tm.seal_checkpoint(1))


def test_a_shard_is_only_written_where_a_checkpoint_is_staged(shard: ModuleType) -> None:
    ps = make(shard)
    ps.fill(vector(1))

    with pytest.raises(tm_refused(), match="the worker stages it"):
        ps.save(5)


def tm_refused() -> type[Exception]:
    import sys

    refused = sys.modules["wire"].Refused
    assert isinstance(refused, type)
    return refused
