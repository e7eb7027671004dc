"""When a training will be done: from where it was when, with how far that may be off."""

from __future__ import annotations

from typing import Any

from core.domain.jobs.progress_rate import KEY, progress_view, with_sample


def go(stations: list[tuple[float, float]], **more: Any) -> dict[str, Any]:
    """Progress after these (time, step)."""
    progress: dict[str, Any] = dict(more)
    for at, step in stations:
        progress["step"] = step
        progress[KEY] = with_sample(progress, at)
    return progress


def test_an_even_training_is_done_when_it_says_and_certainly() -> None:
    reported = progress_view(go([(10.0 * n, 5 * n) for n in range(1, 9)], steps=100), is_running=True)
    assert reported["fraction"] == 0.4
    assert reported["steps_per_s"] == 0.5
    assert (reported["remaining_s"], reported["remaining_s_low"], reported["remaining_s_high"]) == (120.0, 120.0, 120.0)
    assert reported["done_at"] == "1970-01-01T00:03:20+00:00"
    assert KEY not in reported


def test_an_uneven_one_has_wide_bounds_and_what_was_lately_counts_more() -> None:
    slow_then_fast = [(0, 0), (100, 10), (200, 20), (210, 30), (220, 40), (230, 50)]
    reported = progress_view(go([(float(at), step) for at, step in slow_then_fast], steps=100), is_running=True)
    plain_mean = 230 / 50 * 50
    assert reported["remaining_s_low"] < reported["remaining_s"] < plain_mean < reported["remaining_s_high"]


def test_two_reports_are_too_few_for_a_rate() -> None:
    reported = progress_view(go([(0.0, 0), (10.0, 10)], steps=20), is_running=True)
    assert (reported["remaining_s_low"], reported["remaining_s"], reported["remaining_s_high"]) == (5.0, 10.0, 15.0)


def test_without_the_number_of_steps_there_is_no_end() -> None:
    reported = progress_view(go([(0.0, 0), (10.0, 10)]), is_running=True)
    assert "fraction" not in reported
    assert "remaining_s" not in reported


def test_epochs_serve_where_steps_are_not_counted() -> None:
    progress: dict[str, Any] = {"epochs": 10}
    for epoch in range(1, 5):
        progress["epoch"] = epoch
        progress[KEY] = with_sample(progress, 60.0 * epoch)
    reported = progress_view(progress, is_running=True)
    assert (reported["fraction"], reported["remaining_s"]) == (0.4, 360.0)
    assert "steps_per_s" not in reported


def test_a_training_that_began_again_and_a_clock_set_back_forget_what_was_before() -> None:
    again = go([(0.0, 0), (10.0, 50), (20.0, 5), (30.0, 10)], steps=100)
    assert [sample[1] for sample in again[KEY]] == [5, 10]
    back = go([(100.0, 1), (10.0, 2), (20.0, 3)], steps=100)
    assert [sample[0] for sample in back[KEY]] == [10.0, 20.0]


def test_an_ended_job_has_no_end_before_it_and_beyond_the_last_step_nothing_is_left() -> None:
    progress = go([(0.0, 0), (10.0, 10), (20.0, 25)], steps=20)
    assert "remaining_s" not in progress_view(progress, is_running=False)
    reported = progress_view(progress, is_running=True)
    assert (reported["fraction"], reported["remaining_s"]) == (1.0, 0.0)


def test_samples_stay_few_however_long_it_trains() -> None:
    progress = go([(3.0 * n, n) for n in range(5000)], steps=10_000)
    assert len(progress[KEY]) <= 25
    assert progress[KEY][-1] == [3.0 * 4999, 4999]


def test_an_end_beyond_all_calendars_is_left_out() -> None:
    reported = progress_view(go([(0.0, 0), (1e6, 1e-9)], steps=2**53), is_running=True)
    assert "done_at" not in reported
