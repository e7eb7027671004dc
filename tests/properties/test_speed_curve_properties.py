"""The speed of an elastic job by its number of replicas: whatever was measured, the curve can be used."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.domain.jobs.speed_curve import (
    FORGOTTEN_AFTER_S,
    LEAST_MEASURED_S,
    MOST_MEASURED_S,
    SpeedCurve,
    SpeedPoint,
)

SIZES = (1, 2, 3, 5, 8, 13, 64, 500)


@st.composite
def measurements(draw: st.DrawFn, most: int = 5) -> list[SpeedPoint]:
    sizes = draw(st.lists(st.integers(1, 64), unique=True, max_size=most))
    speeds = st.floats(1e-3, 1e5, allow_nan=False)
    return [SpeedPoint(size, draw(speeds), draw(st.floats(0, MOST_MEASURED_S))) for size in sizes]


def amdahl(serial: float, sizes: tuple[int, ...], seconds: float = 300.0) -> list[SpeedPoint]:
    return [SpeedPoint(n, 7 / (serial + (1 - serial) / n), seconds) for n in sizes]


@given(measurements(), measurements())
def test_speeds_are_positive_and_gains_never_negative(own: list[SpeedPoint], earlier: list[SpeedPoint]) -> None:
    curve = SpeedCurve.measured(own, earlier)
    assert curve.speed(0) == 0
    assert all(curve.speed(n) > 0 and curve.gain(n) >= 0 for n in SIZES)


@given(measurements())
def test_a_measured_size_has_its_measured_speed(own: list[SpeedPoint]) -> None:
    curve = SpeedCurve.measured(own)
    for point in own:
        if point.measured_s >= LEAST_MEASURED_S:
            assert curve.speed(point.replicas) == pytest.approx(point.work_per_s)


@given(measurements())
def test_outside_the_measured_sizes_more_replicas_are_never_slower_and_at_most_linear(own: list[SpeedPoint]) -> None:
    curve = SpeedCurve.measured(own)
    largest = max((point.replicas for point in curve.points), default=1)
    speeds = [curve.speed(n) for n in range(largest, largest + 70)]
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(speeds))
    assert speeds[-1] <= speeds[0] * (largest + 69) / largest * (1 + 1e-9)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0, 3)), min_size=1, max_size=6, unique_by=lambda pair: pair[0]))
def test_the_curve_is_monotone_where_the_measurements_are(steps: list[tuple[int, float]]) -> None:
    speed, points = 1.0, []
    for size, more in sorted(steps):
        speed += more
        points.append(SpeedPoint(size, speed, 100))
    speeds = [SpeedCurve.measured(points).speed(n) for n in range(1, 100)]
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(speeds))


@given(measurements(), measurements(), st.floats(1e-3, 1e3))
def test_the_unit_of_work_changes_no_gain(own: list[SpeedPoint], earlier: list[SpeedPoint], factor: float) -> None:
    other = [replace(point, work_per_s=point.work_per_s * factor) for point in own]
    first, second = SpeedCurve.measured(own, earlier), SpeedCurve.measured(other, earlier)
    for n in SIZES:
        assert second.gain(n) == pytest.approx(first.gain(n), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("serial", [0.0, 0.05, 0.3, 0.9])
def test_two_measured_sizes_tell_how_a_program_scales(serial: float) -> None:
    curve = SpeedCurve.measured(amdahl(serial, (2, 4)))
    (there,) = amdahl(serial, (8,))
    assert curve.speed(8) == pytest.approx(there.work_per_s, rel=0.1)


def test_without_measurements_or_with_a_single_one_the_prior_applies() -> None:
    prior = SpeedCurve()
    assert prior.speed(1) == 1
    assert [round(prior.speed(n), 1) for n in (8, 16)] == [6.6, 11.0]
    single = SpeedCurve.measured([SpeedPoint(4, 20.0, 60)])
    assert single.speed(8) == pytest.approx(20 * prior.speed(8) / prior.speed(4))
    assert not prior.is_saturated(500)
    assert not single.is_saturated(500)


def test_a_program_that_got_no_faster_is_saturated_and_one_that_did_is_not() -> None:
    flat = SpeedCurve.measured([SpeedPoint(1, 10, 60), SpeedPoint(2, 10.1, 60)])
    assert flat.is_saturated(2)
    slower = SpeedCurve.measured([SpeedPoint(2, 10, 60), SpeedPoint(4, 8, 60)])
    assert slower.is_saturated(2)
    assert slower.is_saturated(4)
    assert not SpeedCurve.measured([SpeedPoint(2, 11.8, 60), SpeedPoint(4, 20.1, 60)]).is_saturated(4)


def test_a_dip_before_a_faster_size_does_not_stop_growth() -> None:
    # The second worker is on another node, and four have a node each.
    dip = SpeedCurve.measured([SpeedPoint(1, 10, 60), SpeedPoint(2, 9, 60), SpeedPoint(4, 20, 60)])
    assert dip.gain(1) == pytest.approx(1 / 3)
    assert not dip.is_saturated(1)


def test_an_earlier_job_tells_the_shape_and_not_the_scale() -> None:
    earlier = [SpeedPoint(2, 10, 600), SpeedPoint(4, 10.5, 600)]
    own = [SpeedPoint(2, 50, 60)]
    curve = SpeedCurve.measured(own, earlier)
    assert curve.speed(2) == 50
    assert curve.speed(4) == pytest.approx(52.5)
    assert curve.is_saturated(4)
    assert SpeedCurve.measured([], earlier).speed(4) == 10.5


def test_a_measurement_too_short_is_ignored_and_a_long_one_fades() -> None:
    assert SpeedCurve.measured([SpeedPoint(2, 5, LEAST_MEASURED_S / 2)]).points == ()
    point = SpeedPoint(2, 10, MOST_MEASURED_S).with_work(0, MOST_MEASURED_S, MOST_MEASURED_S)
    assert point == SpeedPoint(2, 5, MOST_MEASURED_S, MOST_MEASURED_S)


def test_a_larger_size_is_forgotten_after_long_at_a_smaller_one_and_measured_afresh() -> None:
    large = SpeedPoint(4, 10.2, 60, at_s=100.0)
    small = SpeedPoint(2, 10, 600, at_s=100.0 + FORGOTTEN_AFTER_S)
    assert SpeedCurve.measured([small, large]).is_saturated(2)
    later = SpeedPoint(2, 10, 600, at_s=small.at_s + 1)
    assert SpeedCurve.measured([later, large]) == SpeedCurve.measured([SpeedPoint(2, 10, 600)])
    # A smaller size stays: with it the job knows what its replicas are worth.
    long_ago = SpeedPoint(1, 5, 60, at_s=0.0)
    assert [point.replicas for point in SpeedCurve.measured([long_ago, later]).points] == [1, 2]
    again = large.with_work(20.0 * 30, 30.0, later.at_s + 60.0)
    assert again == SpeedPoint(4, 20.0, 30.0, later.at_s + 60.0)


def test_between_two_measured_sizes_the_first_replicas_add_the_most() -> None:
    curve = SpeedCurve((SpeedPoint(1, 1.0, 60), SpeedPoint(64, 5.9, 60)))
    gains = [curve.speed(n + 1) - curve.speed(n) for n in range(1, 63)]
    assert all(later < earlier for earlier, later in pairwise(gains))
    assert curve.speed(16) == pytest.approx(1 / (0.1562 + 0.8438 / 16), rel=1e-3)
