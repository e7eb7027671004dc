"""What a history of jobs teaches about the next one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.domain.jobs.name_patterns import pattern_of
from core.domain.jobs.progress_rate import KEY, progress_view
from scheduler.planning.forecast.durations import (
    DurationModel,
    JobTraits,
    PastRun,
    UnfinishedRun,
    capped,
    estimate_from_progress,
)
from scheduler.planning.model import Estimate

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def past(name: str, ran_s: float, *, user: str = "ann", project: str = "vision", age: int = 0, **more) -> PastRun:
    return PastRun(JobTraits(project, user, name), ran_s, NOW - timedelta(minutes=age), **more)


def test_names_that_differ_in_numbers_are_one() -> None:
    assert pattern_of("sweep-31") == pattern_of("sweep-7") == "sweep-*"
    assert pattern_of("sweep-3fa81c-lr0.01") == "sweep-*-lr*.*"
    assert pattern_of("decade") == "decade"  # letters of a hash, but no digit


def test_namesakes_tell_how_long_a_job_runs_and_more_of_them_tell_it_closer() -> None:
    few = DurationModel([past("sweep-1", 600)]).estimate(JobTraits("vision", "ann", "sweep-9"))
    many = DurationModel([past(f"sweep-{n}", 600, age=n) for n in range(20)]).estimate(
        JobTraits("vision", "ann", "sweep-99")
    )
    assert few is not None
    assert many is not None
    assert few.likely_s == pytest.approx(600, rel=0.15)
    assert many.likely_s == pytest.approx(600, rel=0.02)
    assert many.late_s - many.early_s < (few.late_s - few.early_s) / 3
    assert (few.source, many.source) == ("1 finished job named sweep-*", "20 finished jobs named sweep-*")


def test_jobs_that_still_run_say_that_their_namesakes_are_longer_than_all_before() -> None:
    tries = [past(f"try-{n}", 5, age=n) for n in range(8)]
    waiting = JobTraits("vision", "ann", "sweep-9")
    runs_s = [600.0, 640.0]
    before = DurationModel(tries).estimate(waiting)
    running = [UnfinishedRun(JobTraits("vision", "ann", f"sweep-{n}"), ran_s) for n, ran_s in enumerate(runs_s)]
    after = DurationModel(tries, running).estimate(waiting)
    assert before is not None
    assert after is not None
    assert before.likely_s < 10
    assert after.likely_s > 600
    assert (before.source, after.source) == ("8 finished jobs of ann that ask for the same",) * 2
    itself = DurationModel(tries, running).estimate(JobTraits("vision", "ann", "sweep-0"), ran_s=600)
    assert itself is not None
    assert 300 < itself.likely_s < 1300
    just_begun = [replace(run, ran_s=1.0) for run in running]
    soon = DurationModel(tries, just_begun).estimate(waiting)
    assert soon is not None
    assert soon.likely_s == pytest.approx(before.likely_s, rel=0.3)
    assert DurationModel((), running).estimate(waiting) is None  # nothing has ended yet


def test_the_narrowest_that_has_samples_counts_most() -> None:
    history = [past(f"sweep-{n}", 100, age=n) for n in range(10)] + [past(f"train-{n}", 9000) for n in range(10)]
    history += [past(f"sweep-{n}", 4000, user="bob", age=n) for n in range(10)]
    learnt = DurationModel(history)
    anns, bobs = (learnt.estimate(JobTraits("vision", user, "sweep-50")) for user in ("ann", "bob"))
    assert anns is not None
    assert bobs is not None
    assert anns.likely_s == pytest.approx(100, rel=0.1)
    assert bobs.likely_s == pytest.approx(4000, rel=0.1)
    new_name = learnt.estimate(JobTraits("vision", "ann", "other"))
    assert new_name is not None
    assert new_name.source == "20 finished jobs of ann that ask for the same"
    assert learnt.estimate(JobTraits("speech", "ann", "sweep-50")) is None


def test_a_job_that_has_outlived_the_short_ones_is_one_of_the_long_ones() -> None:
    history = [past(f"s-{n}", 30, age=n) for n in range(8)] + [past(f"s-{n}", 7200, age=n) for n in range(8, 16)]
    learnt = DurationModel(history)
    young, old = (learnt.estimate(JobTraits("vision", "ann", "s-1"), ran_s=ran) for ran in (0, 600))
    assert young is not None
    assert old is not None
    assert young.early_s < 60
    assert old.likely_s == pytest.approx(6600, rel=0.1)


def test_one_that_has_outlived_all_is_expected_to_go_on_as_long_again() -> None:
    found = DurationModel([past("s-1", 60)]).estimate(JobTraits("vision", "ann", "s-2"), ran_s=100_000)
    assert found is not None
    assert found.likely_s == pytest.approx(100_000)
    assert found.late_s == pytest.approx(900_000)


def test_its_max_run_time_ends_it_in_any_case_and_what_it_ended_would_have_run_longer() -> None:
    learnt = DurationModel([past(f"s-{n}", 3600, age=n) for n in range(5)])
    bound = learnt.estimate(JobTraits("vision", "ann", "s-9"), ran_s=600, max_run_time_s=1200)
    assert bound is not None
    assert (bound.early_s, bound.likely_s, bound.late_s) == (600, 600, 600)
    cut = DurationModel([past(f"s-{n}", 3600, age=n, is_cut_off=True) for n in range(5)]).estimate(
        JobTraits("vision", "ann", "s-9")
    )
    assert cut is not None
    assert cut.early_s >= 3600
    assert capped(cut, 60) == Estimate(60, 60, 60, cut.source)
    assert capped(None, 60) is None


def test_a_training_s_own_progress_tells_its_end() -> None:
    start = NOW.timestamp() - 100
    progress = {"step": 100, "steps": 300, KEY: [[start + second, second] for second in range(0, 101, 10)]}
    found = estimate_from_progress(progress_view(progress, is_running=True), NOW)
    assert found is not None
    assert found.likely_s == pytest.approx(200)
    assert found.early_s <= 190
    assert found.late_s >= 210
    assert estimate_from_progress({"step": 3}, NOW) is None


names = st.sampled_from(["a-1", "a-2", "b", "c-3-4"])
pasts = st.builds(
    lambda name, user, ran, age, cut: past(name, ran, user=user, age=age, is_cut_off=cut),
    names, st.sampled_from(["ann", "bob"]), st.floats(0, 1e7), st.integers(0, 9), st.booleans(),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(pasts, min_size=1, max_size=30), names, st.floats(0, 1e8), st.floats(0, 1e8), st.randoms())
def test_an_estimate_is_in_order_never_negative_and_its_end_moves_only_later(history, name, one, other, chance) -> None:
    learnt, traits = DurationModel(history), JobTraits("vision", "ann", name)
    sooner, later = (learnt.estimate(traits, ran_s=ran) for ran in sorted((one, other)))
    if sooner is None or later is None:
        assert sooner is later
        return
    for found, ran in zip((sooner, later), sorted((one, other)), strict=True):
        assert 0 <= found.early_s <= found.likely_s <= found.late_s
        bound = learnt.estimate(traits, ran_s=ran, max_run_time_s=1000)
        assert bound is not None
        assert bound.late_s <= max(0, 1000 - ran)
    ends = [[ran + getattr(found, field) for field in ("early_s", "likely_s", "late_s")]
            for found, ran in zip((sooner, later), sorted((one, other)), strict=True)]  # fmt: skip
    assert all(then >= before * (1 - 1e-9) for before, then in zip(*ends, strict=True))
    shuffled = list(history)
    chance.shuffle(shuffled)
    assert DurationModel(shuffled).estimate(traits, ran_s=one) == learnt.estimate(traits, ran_s=one)


def test_on_histories_of_many_users_the_bounds_hold_and_the_middle_is_nearer_than_one_for_all() -> None:
    """Judged on made-up histories: every (user, name) has its own length, of which single runs stray by a factor of
    about 1.5.
    """
    chance = Random(6)
    kinds = [(f"u{n % 12}", f"k{'abcdefghijklmnop'[n % 16]}-{{}}", 10 ** chance.uniform(1.5, 5)) for n in range(60)]

    def one(number: int) -> PastRun:
        user, name, typical = kinds[chance.randrange(len(kinds))]
        ran = typical * chance.lognormvariate(0, 0.4) if chance.random() > 0.1 else chance.uniform(1, 30)
        return past(name.format(number), ran, user=user, age=5000 - number)

    history = [one(number) for number in range(2500)]
    learnt = DurationModel(history[:2000])
    middle = sorted(p.ran_s for p in history[:2000])[1000]
    below = {"early_s": 0, "likely_s": 0, "late_s": 0}
    off, off_for_all = [], []
    for job in history[2000:]:
        found = learnt.estimate(job.traits)
        assert found is not None
        for field in below:
            below[field] += job.ran_s <= getattr(found, field)
        off.append(abs(job.ran_s - found.likely_s))
        off_for_all.append(abs(job.ran_s - middle))
    shares = {field: count / 500 for field, count in below.items()}
    assert 0.04 < shares["early_s"] < 0.2, shares
    assert 0.4 < shares["likely_s"] < 0.6, shares
    assert 0.83 < shares["late_s"] < 0.97, shares
    assert sum(off) < 0.6 * sum(off_for_all)
