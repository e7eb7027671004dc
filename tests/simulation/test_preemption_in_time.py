"""What preemption, restarts, elastic replicas and learnt durations do to times that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.planning import Plan, Snapshot, plan
from scheduler.simulator.engine import Simulation
from scheduler.simulator.errors import ScenarioError
from scheduler.simulator.estimates import Knowledge
from scheduler.simulator.metrics import Fairness, rhos, static_rhos, summarise
from scheduler.simulator.outcome import SimulationOutcome
from scheduler.simulator.reading.scenario import Scenario, parse
from scheduler.simulator.runs import Case, comparison_table, copies_of, replay

NODE = [{"name": "n", "gpus": {"H100": 8}}]
TURNS = {
    "order": "shortest-first",
    "is_fair": False,
    "time_slice_s": 10,
    "min_run_time_s": 10,
    "grace_s": 0,
    "restart_cost_s": 0,
}


def _run(**given: Any) -> SimulationOutcome:
    return Simulation(parse({"nodes": NODE, **given})).run()


def _ends(outcome: SimulationOutcome) -> dict[str, float | None]:
    return {name: None if job.ended_s is None else round(job.ended_s, 3) for name, job in outcome.jobs.items()}


LOW_AND_HIGH = [
    {"name": "low", "gpus": 8, "duration": "100s", "priority": 10},
    {"name": "high", "at": "50s", "gpus": 8, "duration": "20s", "priority": 90},
]


@pytest.mark.parametrize(
    ("settings", "low_ends_s"),
    [
        # 50 s of work, 20 s away, 50 s of work.
        ({}, 120.0),
        ({"restart_cost": "30s"}, 150.0),
        # Checkpoints at 0 and 40 s of work: 10 s are done again.
        ({"checkpoint_every": "40s"}, 130.0),
        ({"restart_cost": "30s", "checkpoint_every": "40s"}, 160.0),
    ],
)
def test_a_preempted_job_pays_for_its_restart_and_for_work_without_a_checkpoint(
    settings: dict[str, Any], low_ends_s: float
) -> None:
    policy = {"min_run_time_s": 0, "grace_s": 0}
    outcome = _run(jobs=LOW_AND_HIGH, policy=policy, **settings)
    assert _ends(outcome) == {"low": low_ends_s, "high": 70.0}
    assert outcome.jobs["low"].preemptions == 1


def test_a_preempted_job_works_on_through_its_grace() -> None:
    outcome = _run(jobs=LOW_AND_HIGH, policy={"min_run_time_s": 0, "grace_s": 5})
    assert _ends(outcome) == {"high": 75.0, "low": 120.0}


def test_no_job_is_preempted_before_its_minimum_run_time() -> None:
    outcome = _run(jobs=LOW_AND_HIGH, policy={"min_run_time_s": 70, "grace_s": 0})
    assert _ends(outcome) == {"high": 90.0, "low": 120.0}


SHORT_AND_LONG = [
    {"name": "long", "gpus": 8, "duration": "100s"},
    {"name": "short", "at": "5s", "gpus": 8, "duration": "20s"},
]


def test_the_shorter_one_takes_its_turn_when_durations_are_known() -> None:
    outcome = _run(jobs=SHORT_AND_LONG, policy=TURNS, estimates="known")
    assert _ends(outcome) == {"short": 30.0, "long": 120.0}


def test_what_is_learnt_while_it_runs_gives_the_place_back_to_the_shorter_one() -> None:
    # Both are unknown at first. From 12 s on the one that runs is known to be short; the other one never was started.
    jobs = [
        {"name": "first", "gpus": 8, "duration": "40000s"},
        {"name": "second", "at": "5s", "gpus": 8, "duration": "30s"},
    ]
    outcome = _run(jobs=jobs, policy=TURNS, estimates="learnt", learnt_after="12s")
    # At 12 s the first reports that 39,988 s are left: much more than the index of a job of unknown length.
    assert _ends(outcome) == {"second": 42.0, "first": 40_030.0}


def test_a_turn_stops_no_job_without_checkpoints() -> None:
    jobs = [{**SHORT_AND_LONG[0], "resumable": False}, SHORT_AND_LONG[1]]
    assert _ends(_run(jobs=jobs, policy=TURNS, estimates="known")) == {"long": 100.0, "short": 120.0}


def test_a_job_without_checkpoints_starts_over_after_a_preemption() -> None:
    jobs = [{**SHORT_AND_LONG[0], "resumable": False}, {**SHORT_AND_LONG[1], "priority": 90}]
    assert _ends(_run(jobs=jobs, policy={**TURNS, "time_slice_s": None})) == {"short": 30.0, "long": 130.0}


def test_jobs_of_unknown_length_are_preempted_at_the_next_level() -> None:
    outcome = _run(
        jobs=[{"name": "a", "gpus": 8, "duration": "100s"}, {"name": "b", "at": "1s", "gpus": 8, "duration": "15s"}],
        policy={**TURNS, "order": "attained-service", "levels_gpu_s": [160]},
    )
    # The level ends after 20 s of 8 GPUs.
    assert _ends(outcome) == {"b": 35.0, "a": 115.0}


def _held(outcome_of: dict[str, Any]) -> tuple[SimulationOutcome, list[tuple[float, str]]]:
    """The outcome, and who held the one place from when on."""
    turns: list[tuple[float, str]] = []

    def listen(snapshot: Snapshot, made: Plan) -> None:
        at_s = (snapshot.now - scenario.start).total_seconds()
        turns.extend((round(at_s, 3), start.job_id) for start in made.starts)

    scenario = parse({"nodes": NODE, **outcome_of})
    return Simulation(scenario, on_plan=listen).run(), turns


@pytest.mark.parametrize("order", ["fifo", "attained-service", "shortest-first", "fair-finish"])
def test_equal_long_jobs_on_one_place_alternate(order: str) -> None:
    policy = {**TURNS, "order": order, "time_slice_s": None, "rotation_s": "100s"}
    jobs = [{"name": "a", "gpus": 8, "duration": "250s"}, {"name": "b", "at": "1s", "gpus": 8, "duration": "250s"}]
    outcome, turns = _held({"jobs": jobs, "policy": policy})
    assert turns == [(0, "a"), (100, "b"), (200, "a"), (300, "b"), (400, "a"), (450, "b")]
    assert _ends(outcome) == {"a": 450.0, "b": 500.0}
    # What stopping takes counts as a part of a turn: they alternate as well.
    _, turns = _held({"jobs": jobs, "policy": {**policy, "grace_s": 5}, "restart_cost": "7s"})
    assert [name for _, name in turns] == ["a", "b", "a", "b", "a", "b"]
    # As before without it: who runs stays.
    _, turns = _held({"jobs": jobs, "policy": {**policy, "rotation_s": None}})
    assert [name for _, name in turns] == ["a", "b"]


@pytest.mark.parametrize("is_fair", [True, False])
def test_three_users_go_round(is_fair: bool) -> None:
    policy = {**TURNS, "is_fair": is_fair, "order": "attained-service", "time_slice_s": None, "rotation_s": "100s"}
    jobs = [
        {"name": user, "user": user, "at": f"{at}s", "gpus": 8, "duration": "400s"}
        for at, user in enumerate(["ann", "bob", "cid"])
    ]
    outcome, turns = _held({"jobs": jobs, "policy": policy})
    assert [name for _, name in turns] == ["ann", "bob", "cid"] * 4
    assert _ends(outcome) == {"ann": 1000.0, "bob": 1100.0, "cid": 1200.0}


def test_rotation_prevents_starvation_by_a_stream_of_new_jobs() -> None:
    # Each new one has had no turn yet, and there are more of them than the place has time for.
    policy = {**TURNS, "order": "fifo", "time_slice_s": None, "rotation_s": "60s", "starvation_s": "600s"}
    jobs = [
        {"name": "old", "gpus": 8, "duration": "200s"},
        {"name": "new", "at": "10s", "count": 90, "every": "20s", "gpus": 8, "duration": "50s"},
    ]
    outcome, turns = _held({"jobs": jobs, "policy": policy, "until": "45m"})
    # It waits until it has starved, then it is the first by age.
    assert [at_s for at_s, name in turns if name == "old"] == [0, 660, 1320, 1980]
    assert _ends(outcome)["old"] == 2000.0


def test_who_takes_part_in_turns_is_in_the_end_all_done() -> None:
    jobs = [
        {"name": "mixed", "count": 40, "mean_interval": "20s", "gpus": 2, "duration": {"uniform": ["5s", "10m"]}},
        {"name": "wide", "count": 6, "every": "2m", "workers": 2, "gpus": 8, "duration": {"uniform": ["1m", "5m"]}},
    ]
    nodes = [{"name": "n-{}", "count": 2, "gpus": {"H100": 8}}]
    kinds = (
        ("fifo", None),
        ("fifo", "45s"),
        ("attained-service", None),
        ("shortest-first", None),
        ("fair-finish", None),
    )
    for order, rotation in kinds:
        policy = {**TURNS, "order": order, "levels_gpu_s": [60, 600, 6000]}
        if rotation is not None:
            policy |= {"time_slice_s": None, "rotation_s": rotation}
        again: list[str] = []

        def listen(snapshot: Snapshot, made: Plan, again: list[str] = again) -> None:
            if plan(snapshot) != made:
                again.append("another plan of the same snapshot")

        scenario = parse({"nodes": nodes, "jobs": jobs, "policy": policy, "estimates": "known", "seed": 4})
        outcome = Simulation(scenario, on_plan=listen).run()
        assert all(job.ended_s is not None for job in outcome.jobs.values()), order
        assert not again


def test_room_that_is_held_for_a_wide_gang_is_lent_until_the_rest_of_it_is_free() -> None:
    nodes = [{"name": "n-{}", "count": 2, "gpus": {"H100": 8}}]
    jobs = [
        {"name": "a", "gpus": 8, "duration": "100s"},
        # 16 GPUs x 90 s are less than the lent job's 8 x 300 s, and more than what is left of a's.
        {"name": "wide", "at": "1s", "workers": 2, "gpus": 8, "duration": "90s"},
        {"name": "lent", "at": "2s", "gpus": 8, "duration": "300s"},
    ]
    outcome = _run(nodes=nodes, jobs=jobs, policy=TURNS, estimates="known")
    assert outcome.jobs["lent"].started_s == 2.0
    assert _ends(outcome) == {"a": 100.0, "wide": 190.0, "lent": 392.0}


@pytest.mark.parametrize(
    ("policy", "priority"),
    [
        ({"order": "fifo", "time_slice_s": None, "rotation_s": "2m"}, 50),
        ({"order": "attained-service", "time_slice_s": None, "rotation_s": "2m"}, 50),
        ({"order": "attained-service", "time_slice_s": "2m", "levels_gpu_s": [240]}, 50),
        ({"order": "fifo", "time_slice_s": "2m"}, 50),
        ({"order": "fifo", "time_slice_s": "2m", "min_run_time_s": "2m"}, 60),
    ],
)
def test_a_wide_gang_does_not_lend_its_room_for_ever_to_jobs_that_are_shorter_than_a_turn(
    policy: dict[str, Any], priority: int
) -> None:
    jobs = [
        {"name": "first", "gpus": 1, "duration": "25s"},
        {"name": "wide", "at": "1s", "gpus": 2, "duration": "10s", "priority": priority},
        # More of them than there is time for, and never do two of them end together.
        {"name": "short", "count": 60, "every": "20s", "gpus": 1, "duration": "50s"},
    ]
    nodes = [{"name": "n", "gpus": {"H100": 2}}]
    outcome = _run(nodes=nodes, jobs=jobs, policy={**TURNS, "starvation_s": "10m", **policy}, until="20m")
    started_s = outcome.jobs["wide"].started_s
    assert started_s is not None
    assert 601 <= started_s <= 651


def test_the_order_fair_finish_lets_a_long_one_run_in_time() -> None:
    nodes = [{"name": "n", "gpus": {"H100": 2}}]
    jobs = [
        {"name": "short", "count": 8, "gpus": 1, "duration": "100s"},
        {"name": "long", "at": "1s", "gpus": 1, "duration": "800s"},
    ]
    ends = {
        order: max(
            end or 0
            for end in _ends(_run(nodes=nodes, jobs=jobs, policy={**TURNS, "order": order}, estimates="known")).values()
        )
        for order in ("shortest-first", "fair-finish")
    }
    # 1,600 GPU-seconds on two GPUs: nothing can end before 801 s. Shortest first, the long one starts at 400 s.
    assert ends["shortest-first"] == 1200.0
    assert ends["fair-finish"] < 1000.0


def test_an_elastic_job_is_as_fast_as_it_has_replicas() -> None:
    jobs = [
        {"name": "held", "gpus": 4, "duration": "100s"},
        {"name": "elastic", "workers": {"min": 1, "max": 2}, "gpus": 4, "duration": "100s"},
    ]
    # One of two replicas for 100 s: half of the work; then both.
    outcome = _run(jobs=jobs)
    assert _ends(outcome) == {"held": 100.0, "elastic": 150.0}


def test_finish_time_fairness_by_hand() -> None:
    nodes = [{"name": "n", "gpus": {"H100": 1}}]
    jobs = [{"name": "a", "gpus": 1, "duration": "10s"}, {"name": "b", "gpus": 1, "duration": "10s"}]
    outcome = _run(nodes=nodes, jobs=jobs)
    # Two jobs on one GPU: each has twice its time. The first ends after 10 s, the second after 20 s.
    assert static_rhos(outcome.jobs.values(), 1) == [0.5, 1.0]
    # The second one shared for 10 s of 20 s: 1.5 jobs on the average.
    assert rhos(outcome.jobs.values(), 1) == pytest.approx([0.5, 20 / 15])
    assert Fairness.of([0.5, 1.04, 1.2, 2.0]) == Fairness(worst=2.0, mean=1.185, unfair=0.5, late=0.75)


def test_more_nodes_are_tried_on_the_same_history() -> None:
    scenario: Scenario = parse(
        {
            "nodes": [{"name": "n-{}", "count": 2, "gpus": {"H100": 8}}],
            "jobs": [{"count": 8, "gpus": 8, "duration": "1h"}],
        }
    )
    more = copies_of(scenario.nodes, 2)
    assert [node.id for node in more] == ["more-0", "more-1"]
    before = summarise(replay(scenario.arrivals, scenario.nodes, scenario.policy))
    after = summarise(
        replay(scenario.arrivals, scenario.nodes, scenario.policy, more_nodes=more, knowledge=Knowledge.KNOWN)
    )
    assert (before.makespan_s, after.makespan_s) == (4 * 3600.0, 2 * 3600.0)
    drained = [replace(node, is_schedulable=False, is_draining=True) for node in scenario.nodes]
    assert summarise(replay(scenario.arrivals, drained, scenario.policy)) == before
    text = comparison_table([Case("as it is", before), Case("2 more nodes", after)])
    assert "-40%" in text
    with pytest.raises(ValueError, match="no node 'x'"):
        copies_of(scenario.nodes, 1, like="x")


def test_allocation_over_time_is_resampled_in_equal_intervals() -> None:
    outcome = _run(
        jobs=[{"name": "a", "gpus": 4, "duration": "100s"}, {"name": "b", "at": "50s", "gpus": 4, "duration": "50s"}]
    )
    allocation = summarise(outcome).allocation
    assert len(allocation) == 200
    assert allocation[10][1] == pytest.approx(0.5)
    assert allocation[150][1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"policy": {"oder": "fifo"}}, "policy: 'oder' is not known"),
        ({"policy": {"order": "random"}}, "policy.order"),
        ({"policy": {"usage_weight": 2}}, "policy.usage_weight: must be between 0 and 1"),
        ({"policy": {"is_fair": 1}}, "policy.is_fair: 1 is not true or false"),
        ({"accounts": {"vision": {"weight": 0}}}, "accounts.vision.weight: is more than 0"),
        ({"accounts": {"vision": {"limit": {"gpu": 1}}}}, "accounts.vision.limit: 'gpu' is not known"),
        (
            {"bookings": [{"project": "a", "nodes": ["x"], "from": "1h", "to": "2h"}]},
            "bookings[0].nodes: there is no node x",
        ),
        (
            {"bookings": [{"project": "a", "nodes": ["n"], "from": "2h", "to": "1h"}]},
            "bookings[0].to: is later than from",
        ),
        ({"estimates": "guess"}, "estimates: is one of unknown, known, learnt, history"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_place(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse({"nodes": NODE, **given})
    assert words in str(caught.value)
