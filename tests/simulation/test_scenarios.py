"""The scenarios beside this file, run through the production planner; each says itself what it expects."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.planning import Plan, Snapshot, plan
from scheduler.simulator.engine import Simulation
from scheduler.simulator.expectations import failures
from scheduler.simulator.reading.scenario import load
from scheduler.simulator.runs import report

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.yaml"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_everything_a_scenario_expects_holds_and_the_same_seed_gives_the_same_history(path: Path) -> None:
    first, second = (Simulation(load(path)).run() for _ in range(2))
    assert failures(first) == [], report(first)
    assert [job.nodes for job in first.jobs.values()] == [job.nodes for job in second.jobs.values()]
    assert [job.started_s for job in first.jobs.values()] == [job.started_s for job in second.jobs.values()]


def test_a_timed_reservation_holds_while_small_jobs_stream_in() -> None:
    # The moment told to the gang never moves back: who backfills cannot delay it.
    reported: list[str] = []

    def listen(snapshot: Snapshot, made: Plan) -> None:
        reason = made.waits.get("big")  # type: ignore[call-overload]
        if reason is not None and "expected_start" in reason.numbers:
            reported.append(reason.numbers["expected_start"])

    from scheduler.simulator.reading.scenario import parse

    scenario = parse(
        {
            "seed": 3,
            "policy": {"order": "attained-service", "time_slice_s": None},  # by length, small jobs are before it
            "nodes": [{"name": "gpu-{}", "count": 3, "gpus": {"H100": 8}}],
            "jobs": [
                {"name": "first", "count": 9, "gpus": 2, "duration": "2h", "max_run_time": "2h"},
                {"name": "big", "at": "1s", "workers": 2, "gpus": 8, "duration": "1h"},
                {
                    "name": "small",
                    "at": "2s",
                    "count": 400,
                    "mean_interval": "30s",
                    "gpus": 1,
                    "duration": {"uniform": ["1m", "50m"]},
                    "max_run_time": "1h",
                },
            ],
            "expect": [{"started": "big", "by": "2h"}, {"finished": "all"}],
        }
    )
    outcome = Simulation(scenario, plan, listen).run()
    assert failures(outcome) == []
    assert reported
    assert reported == sorted(reported, reverse=True)
