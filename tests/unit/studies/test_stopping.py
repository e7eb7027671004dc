"""Which trials end early: rules over curves, each on its own, of metrics to be maximized and minimized alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainmaster.studies import Goal, Stopping

from core.domain.studies.curves import STORED_POINTS, Curve, make_curve, thinned
from core.domain.studies.trial_schedulers import EarlyStop, brackets_of, decide_early_stops

MIN = Goal.MINIMIZE


def rule(kind: str, **fields: Any) -> Stopping:
    return Stopping.model_validate({"rule": kind, **fields})


def flat(number: int, value: float, steps: int = 27, *, is_over: bool = False) -> Curve:
    return make_curve(number, [(step, value) for step in range(1, steps + 1)], is_over=is_over)


def decide_early_stop(rule: Stopping, goal: Goal, curve: Curve, others: Sequence[Curve]) -> EarlyStop | None:
    return decide_early_stops(rule, goal, [curve], others).get(curve.number)


def test_asha_lets_the_best_third_pass_each_rung() -> None:
    asha = rule("asha", min_steps=1, reduction=3, min_trials=3)
    others = [flat(number, number / 10) for number in range(1, 10)]
    retained = [curve.number for curve in others if decide_early_stop(asha, MIN, curve, others) is None]
    assert retained == [1, 2, 3]
    verdict = decide_early_stop(asha, MIN, others[5], others)
    assert verdict is not None
    # Nobody looked earlier, so it is asked where it has come to.
    assert verdict.sentence == "at step 27 it was number 6 of 9 trials, and the best 3 go on"


def test_who_was_let_pass_a_rung_is_not_called_back_when_others_come_to_it() -> None:
    asha, passed = rule("asha", min_steps=1, reduction=3, min_trials=3), dict[int, int]()
    values = [5.0, 4.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 0.5]
    late = [make_curve(1, list(enumerate(values[:steps], start=1))) for steps in range(1, 10)]
    assert decide_early_stops(asha, MIN, [late[0]], [], passed) == {}  # the first at step 1
    others = [make_curve(number, [(1, 4.9)], is_over=True) for number in range(2, 8)]
    assert decide_early_stops(asha, MIN, [late[1]], others, passed) == {}
    further = [make_curve(number, [(step, 2.9) for step in range(1, 4)]) for number in range(8, 12)]
    verdict = decide_early_stops(asha, MIN, [late[3]], [*others, *further], passed)[1]
    assert verdict.sentence == "at step 3 it was number 5 of 5 trials, and the best 1 go on"
    assert decide_early_stops(asha, MIN, [late[8]], [*others, *further], passed) == {}  # at step 9 nobody else has been


def test_asha_judges_nobody_before_a_rung_is_full() -> None:
    asha = rule("asha", min_steps=1, reduction=3, min_trials=1)
    assert decide_early_stop(asha, MIN, flat(1, 9.0), [flat(2, 1.0)]) is None
    assert decide_early_stop(asha, MIN, flat(1, 9.0), [flat(2, 1.0), flat(3, 2.0)]) is not None


def test_a_rung_counts_what_was_reached_by_then_alone() -> None:
    asha = rule("asha", min_steps=9, reduction=3, min_trials=3)
    late = make_curve(1, [(step, 10.0 if step < 9 else 0.0) for step in range(1, 28)])
    assert decide_early_stop(asha, MIN, late, [flat(2, 1.0), flat(3, 2.0), flat(4, 3.0)]) is None


def test_hyperband_compares_within_a_bracket() -> None:
    band = rule("hyperband", min_steps=1, reduction=3, min_trials=3, max_steps=81)
    others = [flat(number, number / 10, steps=81) for number in range(1, 41)]
    stopped = {curve.number for curve in others if decide_early_stop(band, MIN, curve, others) is not None}
    assert 0 < len(stopped) < 40
    # The worst of the bracket that halves last is still judged, by its own.
    assert {number % 5 for number in stopped} == {0, 1, 2, 3, 4}


def test_a_trial_stays_in_its_bracket_while_others_get_further() -> None:
    band = rule("hyperband", min_steps=1, reduction=3, min_trials=3)
    # Trials 1, 4, 7 … are those of the second bracket, which first asks at step 3.
    own = [flat(number, number / 10, steps=3) for number in (1, 4, 7, 10)]
    alone = decide_early_stop(band, MIN, own[3], own)
    assert alone is not None
    assert alone.sentence == "at step 3 it was number 4 of 4 trials, and the best 1 go on"
    for longest in (9, 27, 81, 2000):
        assert decide_early_stop(band, MIN, own[3], [*own, flat(12, 0.01, steps=longest)]) == alone


@pytest.mark.parametrize(
    ("fields", "count"),
    [({}, 3), ({"max_steps": 1}, 1), ({"max_steps": 26}, 3), ({"max_steps": 27}, 4), ({"max_steps": 10**9}, 5),
     ({"max_steps": 27, "min_steps": 9}, 2), ({"max_steps": 2, "min_steps": 0, "reduction": 2}, 2)],
)  # fmt: skip
def test_hyperband_has_as_many_brackets_as_rungs(fields: dict[str, int], count: int) -> None:
    assert brackets_of(rule("hyperband", **fields)) == count


def test_median_ends_what_never_was_as_good_as_others_were_on_average() -> None:
    median = rule("median", min_steps=2, min_trials=3)
    others = [flat(number, value) for number, value in enumerate((1.0, 2.0, 3.0), start=2)]
    assert decide_early_stop(median, MIN, flat(1, 2.5, steps=5), others) is not None
    assert decide_early_stop(median, MIN, flat(1, 1.5, steps=5), others) is None
    assert decide_early_stop(median, MIN, flat(1, 2.5, steps=1), others) is None
    assert decide_early_stop(median, MIN, flat(1, 2.5, steps=5), others[:2]) is None


def test_median_of_what_is_maximized() -> None:
    median = rule("median", min_trials=3)
    others = [flat(number, value) for number, value in enumerate((1.0, 2.0, 3.0), start=2)]
    assert decide_early_stop(median, Goal.MAXIMIZE, flat(1, 1.5), others) is not None
    assert decide_early_stop(median, Goal.MAXIMIZE, flat(1, 2.5), others) is None


def test_patience_counts_reports_since_the_best_one() -> None:
    patience = rule("patience", patience=3)
    falling = make_curve(1, [(1, 5.0), (2, 4.0), (3, 4.0), (4, 4.5), (5, 4.1)])
    assert decide_early_stop(patience, MIN, falling, []) is not None
    assert decide_early_stop(patience, MIN, make_curve(1, [(1, 5.0), (2, 4.0), (3, 4.1), (4, 4.2)]), []) is None


def test_decay_curve_ends_what_cannot_reach_the_best() -> None:
    decay = rule("decay-curve", min_trials=1)
    done = [make_curve(2, [(step, 0.2 + 1 / step) for step in range(1, 101)], is_over=True)]
    hopeless = make_curve(1, [(step, 0.6 + 1 / step) for step in range(1, 21)])
    hopeful = make_curve(1, [(step, 0.1 + 2 / step) for step in range(1, 21)])
    assert decide_early_stop(decay, MIN, hopeless, done) is not None
    assert decide_early_stop(decay, MIN, hopeful, done) is None
    assert decide_early_stop(decay, MIN, hopeless, [flat(3, 0.0)]) is None  # nobody has finished


CURVES = st.lists(
    st.lists(st.tuples(st.integers(0, 100), st.floats(-1e6, 1e6)), min_size=1, max_size=20), min_size=1, max_size=12
)
RULES = ["asha", "hyperband", "median", "patience", "decay-curve"]


@settings(deadline=None)
@given(CURVES, st.sampled_from(RULES), st.randoms(use_true_random=False))
def test_the_best_of_all_is_never_ended_by_comparison_and_order_does_not_matter(
    points: Any, kind: str, chance: Any
) -> None:
    curves = [make_curve(number, reported, is_over=number % 2 == 0) for number, reported in enumerate(points)]
    this = rule(kind, min_steps=0, min_trials=1)
    verdicts = [decide_early_stop(this, MIN, curve, curves) for curve in curves]
    shuffled = list(curves)
    chance.shuffle(shuffled)
    assert verdicts == [decide_early_stop(this, MIN, curve, shuffled) for curve in curves]
    mirrored = [Curve(c.number, c.steps, tuple(-v for v in c.values), c.is_over) for c in curves]
    assert verdicts == [decide_early_stop(this, Goal.MAXIMIZE, curve, mirrored) for curve in mirrored]
    if kind in ("asha", "hyperband", "median"):
        low = min(min(curve.values) for curve in curves)
        always = [c.number for c in curves if set(c.values) == {low}]
        assert all(verdicts[number] is None for number in always)


def test_what_is_no_number_is_no_point_and_the_last_word_of_a_step_counts() -> None:
    curve = make_curve(1, [(2, 5.0), (1, float("nan")), (2, 4.0), (3, float("inf"))])
    assert (curve.steps, curve.values) == ((2,), (4.0,))
    assert decide_early_stop(rule("median"), MIN, make_curve(1, []), [curve]) is None


@pytest.mark.parametrize("count", [1, STORED_POINTS, STORED_POINTS + 1, 12_345])
def test_a_thinned_curve_keeps_its_ends(count: int) -> None:
    curve = flat(1, 1.0, steps=count)
    retained = thinned(curve)
    assert len(retained.steps) == min(count, STORED_POINTS)
    assert (retained.steps[0], retained.steps[-1]) == (1, count)
