"""The Gittins index: what a job of unknown length needs per chance to end."""

from __future__ import annotations

from math import log

import pytest

from scheduler.planning.queue.policy_key import RUN_TIME_BUCKETS, GittinsIndex, run_time_bucket

HOUR_S = 3600.0


def finished(*run_times_s: tuple[float, int]) -> tuple[int, ...]:
    counts = [0] * (len(RUN_TIME_BUCKETS) + 1)
    for run_s, jobs in run_times_s:
        counts[run_time_bucket(run_s)] += jobs
    return tuple(counts)


def test_without_finished_jobs_the_index_is_that_of_a_heavy_tail() -> None:
    # Run times spread evenly in the logarithm: the hazard rate at t is 1 / (t log(longest / t)).
    index, longest_s = GittinsIndex(()), RUN_TIME_BUCKETS[-1]
    for age_s in RUN_TIME_BUCKETS[5:40:5]:
        assert index.of(age_s) == pytest.approx(age_s * log(longest_s / age_s), rel=0.25)
    ages_s = [0.0, 300.0, HOUR_S, 10 * HOUR_S, 100 * HOUR_S]
    assert [index.of(age_s) for age_s in ages_s] == sorted(index.of(age_s) for age_s in ages_s)


def test_a_job_past_the_longest_known_needs_as_much_again() -> None:
    age_s = 4 * RUN_TIME_BUCKETS[-1]
    assert GittinsIndex(finished((HOUR_S, 3))).of(age_s) == age_s


def test_where_all_jobs_last_an_hour_the_index_is_what_is_left_of_it() -> None:
    index = GittinsIndex(finished((HOUR_S, 10_000)))
    assert index.of(0.0) == pytest.approx(HOUR_S, rel=0.15)
    assert index.of(HOUR_S / 2) == pytest.approx(HOUR_S / 2, rel=0.3)
    assert index.of(10 * HOUR_S) > 10 * HOUR_S  # it is one of the few that last for much longer


def test_a_job_that_has_outlasted_the_short_ones_comes_behind_a_new_one() -> None:
    # Nine in ten jobs last five minutes, the others ten hours.
    index = GittinsIndex(finished((300.0, 900), (10 * HOUR_S, 100)))
    assert index.of(0.0) < 600.0
    assert index.of(900.0) > 16 * index.of(0.0)
    assert index.of(9.5 * HOUR_S) < 0.2 * index.of(900.0)  # and near its end it comes forward again
