"""A curve that grows says the same as one that is made of all its reports, in whatever order and parts they came."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainmaster.studies import Goal

from core.domain.studies.curves import MAX_ENTRIES, Trace, make_curve

REPORTS = st.lists(st.tuples(st.integers(0, 40), st.floats(-100, 100) | st.just(float("nan"))), max_size=60)


@settings(deadline=None)
@given(REPORTS, st.lists(st.integers(0, 60), max_size=4))
def test_parts_come_to_the_same_as_all_at_once(reports: list[tuple[int, float]], cuts: list[int]) -> None:
    trace = Trace(1, Goal.MINIMIZE)
    ends = sorted({0, len(reports), *(min(cut, len(reports)) for cut in cuts)})
    for begin, end in pairwise(ends):
        trace.add(reports[begin:end])
    whole = make_curve(1, reports)
    assert tuple(trace.steps) == whole.steps
    assert tuple(trace.values) == whole.values
    assert list(trace.lows) == list(accumulate(whole.values, min))
    assert list(trace.sums) == pytest.approx(list(accumulate(whole.values)))
    assert list(trace.counts) == list(range(1, len(whole.steps) + 1))
    if whole:
        assert trace.best_place == whole.values.index(min(whole.values))


def test_less_is_better_of_a_metric_that_is_to_grow_too() -> None:
    trace = Trace(1, Goal.MAXIMIZE)
    trace.add([(2, 0.5), (4, 0.9), (6, 0.7)])
    assert [trace.low_until(step) for step in (1, 2, 3, 5, 6, 7)] == [None, -0.5, -0.5, -0.9, -0.9, None]
    assert (trace.value_at(6), trace.value_at(5)) == (-0.7, -0.9)
    assert trace.mean_until(6) == pytest.approx(-0.7)


def test_a_long_curve_takes_few_entries_and_forgets_neither_its_least_nor_its_mean() -> None:
    chance = random.Random(5)
    values = [chance.random() + (0 if step == 30_011 else 1) for step in range(60_000)]
    trace = Trace(1, Goal.MINIMIZE)
    for begin in range(0, len(values), 1_000):
        trace.add((step, values[step]) for step in range(begin, begin + 1_000))
    assert len(trace.steps) <= MAX_ENTRIES
    assert (trace.counts[-1], trace.lows[-1]) == (60_000, values[30_011])
    assert trace.mean_until(59_999) == pytest.approx(sum(values) / 60_000)
    for rung in (1, 3, 9, 81, 243):  # the first rungs lie in reports that all are kept
        assert trace.low_until(rung) == min(values[: rung + 1])
    for step in (5_000, 29_000, 40_000):
        place = trace.counts[-1] - sum(1 for one in trace.steps if one > step)
        assert place > 0
        until = max(one for one in trace.steps if one <= step)
        assert step - until <= step / 500
        assert trace.low_until(step) == min(values[: until + 1])


def test_an_attempt_that_goes_on_from_a_checkpoint_has_the_last_word_of_the_steps_that_it_does_again() -> None:
    trace = Trace(1, Goal.MINIMIZE)
    trace.add((step, 1.0) for step in range(50_000))
    trace.add((step, 2.0) for step in range(49_000, 49_500))
    assert (trace.value_at(49_499), trace.value_at(49_500), trace.counts[-1]) == (2.0, 1.0, 50_000)
    assert trace.mean_until(49_999) == pytest.approx((50_000 + 500) / 50_000)
    trace.add([(20_000, 0.5)])  # older ones are in runs, whose reports are not known one by one any more
    assert trace.lows[-1] == 0.5
    assert trace.low_until(19_999) == 1.0
