"""Packing points and digesting them loses nothing."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from core.domain.metrics import (
    NAME_LIMIT,
    Points,
    digest_buckets,
    digest_runs,
    from_bytes,
    merge_buckets,
    name_fault,
    sorted_points,
    unpack,
    unpack_digests,
)


def noisy(count: int, *, seed: int = 7) -> Points:
    chance = random.Random(seed)
    return Points(range(count), range(0, 37 * count, 37), [chance.gauss(0, 1) for _ in range(count)])


def same(item: Points, other: Points) -> bool:
    is_same = all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(item.values, other.values, strict=True))
    return item.steps == other.steps and item.times == other.times and is_same


@pytest.mark.parametrize(
    "points",
    [
        Points(),
        Points([5], [1_700_000_000_000], [0.25]),
        # A clock that runs backwards, steps that begin again, the largest numbers, and values that are no numbers.
        Points([9, 0, -(2**53), 2**53], [50, 10, 0, 40], [math.nan, math.inf, -math.inf, -0.0]),
        noisy(4096),
    ],
    ids=["none", "one", "odd", "many"],
)
def test_packed_points_come_back_as_they_were(points: Points) -> None:
    assert same(unpack(points.pack()), points)
    assert same(from_bytes(points.to_bytes()), points)


def test_a_noisy_series_takes_a_third_of_what_it_was() -> None:
    points = noisy(4096)
    assert len(points.pack()) < 24 * 4096 / 3


def test_columns_of_different_lengths_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="length"):
        Points([1, 2], [0], [0.5])


def test_digests_keep_every_peak_and_count_what_is_no_number() -> None:
    points = noisy(1000)
    points.values[333], points.values[700], points.values[701] = 99.0, math.nan, -math.inf
    digests = unpack_digests(digest_runs(points, 64).pack())
    assert sum(digests.count) == 1000
    assert max(digests.high) == 99.0
    assert (sum(digests.nan), sum(digests.positive), sum(digests.negative)) == (1, 0, 1)
    assert (digests.first[0], digests.last[-1]) == (points.values[0], points.values[-1])
    merged = merge_buckets(digests, "step", 7)
    assert len(merged) <= 7
    assert sum(merged.count) == 1000
    assert max(merged.high) == 99.0
    assert math.isclose(sum(merged.total), sum(value for value in points.values if math.isfinite(value)))


def test_a_run_without_a_finite_value_has_no_bounds() -> None:
    digests = digest_runs(Points([0, 1], [0, 1], [math.nan, math.inf]), 2)
    assert math.isnan(digests.low[0])
    assert math.isnan(digests.high[0])
    digests.extend(digest_runs(Points([2], [2], [3.0]), 2))
    merged = digests.merge([(0, 2)])
    assert (merged.low[0], merged.high[0]) == (3.0, 3.0)


def test_buckets_lie_one_after_the_other_and_hold_all() -> None:
    points = noisy(5000)
    made = digest_buckets(points, "step", 100)
    assert len(made) == 100
    assert sum(made.count) == 5000
    assert all(high < low for high, low in zip(made.step_max, made.step_min[1:], strict=False))


def test_points_out_of_order_are_sorted_by_what_the_chart_is_of() -> None:
    points = Points([3, 1, 2, 1], [10, 40, 20, 30], [1.0, 2.0, 3.0, 4.0])
    assert list(sorted_points(points, "step").values) == [2.0, 4.0, 3.0, 1.0]
    assert list(sorted_points(points, "time").values) == [1.0, 3.0, 4.0, 2.0]


def test_digests_that_overlap_are_reported_with_the_steps_that_they_really_hold() -> None:
    # Two launches wrote the same steps: the runs of the second begin before those of the first end.
    points = Points([*range(1000), *range(1000)], range(2000), [float(n) for n in range(2000)])
    merged = merge_buckets(digest_runs(points, 64), "step", 10)
    assert sum(merged.count) == 2000
    assert all(low <= high for low, high in zip(merged.step_min, merged.step_max, strict=True))
    assert all(before <= after for before, after in pairwise(merged.step_min))


@pytest.mark.parametrize("name", ["", "x" * (NAME_LIMIT + 1), "a\nb", "a\x1b[31m", "a\u202eb"])
def test_names_that_cannot_be_shown_are_refused_with_a_sentence(name: str) -> None:
    assert name_fault(name)


@pytest.mark.parametrize("name", ["loss", "train/loss", "Akkurasi çok iyi", "a.b-c_d 1"])
def test_names_of_people_are_taken(name: str) -> None:
    assert name_fault(name) is None
