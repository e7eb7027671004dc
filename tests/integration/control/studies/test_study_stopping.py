"""Trials that are stopped early: whose turn is judged when, what a rung remembers, and who gets the place."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from core.db.tables import Attempt, Event, Job, Lease, Replica
from core.domain.studies.trial_schedulers import decide_early_stops_of_traces
from core.wakeups import TOPIC_STUDY
from executors.fake import Script
from scheduler.control.attempts.storage.attempt_writer import AttemptWriter
from scheduler.control.studies.facts import load_study
from scheduler.control.studies.study_loop import StudyLoop
from tests.databases import recorded_statements
from tests.integration.control.studies.study_lab import Lab


@pytest.fixture
def lab(plane: Any) -> Lab:
    return Lab(plane)


def test_what_goes_badly_is_stopped_early_and_makes_room(lab: Lab) -> None:
    lab.create(
        budget={"trials": 6, "parallel": 6},
        stopping={"rule": "median", "min_steps": 1, "min_trials": 3},
        initial=[{"x": x} for x in (0.9, 0.8, 0.85, 0.95, 0.1, 0.99)],
    )
    lab.curve = lambda point: [(step, point["x"] * step / 10) for step in range(1, 11)]
    lab.script = lambda _point: Script(run_for=timedelta(seconds=8))
    lab.run()
    by_x = {trial.parameters["x"]: trial for trial in lab.trials}
    bad = by_x[0.1]
    assert bad.state == "stopped"
    assert "worse than the median" in bad.reason
    assert bad.result == {"score": 0.1}
    assert by_x[0.99].state == "succeeded"
    reported = [line.data for line in lab.plane.all(Event, job_id=bad.job_id) if line.kind == "job.cancel_requested"]
    assert reported == [{"code": "stopped_early"}]


@pytest.mark.parametrize("moment", ["before the round", "while it is judged"])
def test_a_trial_whose_script_has_finished_is_not_stopped_early(
    lab: Lab, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.create(
        budget={"trials": 4, "parallel": 4},
        stopping={"rule": "median", "min_steps": 1, "min_trials": 3},
        initial=[{"x": x} for x in (0.9, 0.8, 0.85, 0.1)],
    )
    lab.script = lambda point: Script(run_for=timedelta(seconds=5 if point["x"] == 0.1 else 100))
    lab.curve = lambda _point: []
    lab.turn()
    for trial in lab.trials:
        lab.tell(str(trial.job_id), *((step, trial.parameters["x"]) for step in range(1, 5)))

    def die(*_: Any) -> None:
        raise RuntimeError("killed")

    def finish() -> None:
        """Its replica's end is written, its job's not yet."""
        with monkeypatch.context() as patch:
            patch.setattr(AttemptWriter, "end", die)
            lab.plane.engine.advance(timedelta(seconds=5))
            with pytest.raises(RuntimeError):
                lab.plane.settle()

    def decide_early_stops_once(*given: Any) -> Any:
        monkeypatch.setattr(
            "scheduler.control.studies.trial_stops.decide_early_stops_of_traces", decide_early_stops_of_traces
        )
        finish()
        return decide_early_stops_of_traces(*given)

    if moment == "before the round":
        finish()
    else:
        monkeypatch.setattr(
            "scheduler.control.studies.trial_stops.decide_early_stops_of_traces", decide_early_stops_once
        )
    lab.study_loop.reconcile("study-1")
    bad = lab.plane.one(Job, id=lab.trials[3].job_id)
    assert (lab.plane.one(Replica, job_id=bad.id).state, bad.state, bad.desired_state) == (
        "succeeded",
        "running",
        "run",
    )
    lab.restart()
    lab.plane.engine.advance(lab.plane.control.lease_ttl * 2)
    lab.turn()
    lab.turn()
    assert [(t.state, t.stop, t.result) for t in lab.trials][3] == ("succeeded", None, {"score": 0.1})


@pytest.mark.parametrize("other", ["restarted", "second"])
def test_a_passed_rung_is_not_judged_again_by_another_process(lab: Lab, other: str) -> None:
    values = (0.1, 0.9, 0.8, 0.4, 0.3, 0.2)
    lab.create(
        budget={"trials": 6, "parallel": 6},
        stopping={"rule": "asha", "min_steps": 1, "reduction": 3, "min_trials": 3},
        initial=[{"x": value} for value in values],
    )
    lab.script = lambda _point: Script(run_for=timedelta(hours=1))
    lab.curve = lambda _point: []
    lab.turn()
    jobs = {trial.number: str(trial.job_id) for trial in lab.trials}
    lab.tell(jobs[1], (1, values[0]))
    with recorded_statements(lab.plane.sessions.kw["bind"]) as sent:
        for _ in range(3):
            lab.turn()  # it is alone at this rung
    for number, value in enumerate(values[1:], start=2):
        lab.tell(jobs[number], (1, value))
    if other == "restarted":
        lab.restart()
    else:
        lab.study_loop = StudyLoop(replace(lab.plane.control, holder="second"))
    lab.turn()
    stops = {trial.number: trial.stop and trial.stop["step"] for trial in lab.trials}
    assert stops == {1: None, 2: None, 3: None, 4: 1, 5: 1, 6: 1}
    for number in (1, 2, 3):
        lab.tell(jobs[number], (2, values[number - 1]), (3, values[number - 1]))
    lab.turn()
    stops = {trial.number: trial.stop and trial.stop["step"] for trial in lab.trials}
    assert (stops[1], stops[2]) == (3, None)  # at the next rung it is asked
    assert sum(line.startswith("UPDATE trials") for line in sent) == 1  # not with each look


def test_a_round_sees_what_was_written_until_it_took_the_lease(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.create()
    held: list[str] = []

    def load(session: Session, *rest: Any) -> Any:
        lease = session.get(Lease, "study:study-1")
        held.append(lease.holder if lease is not None and lease.expires_at > lab.plane.engine.now else "nobody")
        return load_study(session, *rest)

    monkeypatch.setattr("scheduler.control.studies.study_loop.load_study", load)
    lab.study_loop.reconcile("study-1")
    assert set(held) == {lab.plane.control.holder}


def test_the_place_of_a_stopped_trial_is_the_next_ones_in_the_moment_in_which_its_processes_have_ended(
    lab: Lab,
) -> None:
    lab.create(
        template={"command": "train", "gpus": 1},  # the node has two
        budget={"trials": 4, "parallel": 2},
        stopping={"rule": "patience", "patience": 3},
        initial=[{"x": 0.9}, {"x": 0.1}, {"x": 0.8}],
    )
    lab.curve = lambda point: [(step, point["x"] * (step if point["x"] > 0.5 else 1)) for step in range(1, 5)]
    lab.script = lambda _point: Script(run_for=timedelta(hours=1), ends_after_term=timedelta(seconds=4))
    heard: list[tuple[str, str]] = []
    lab.plane.notify = lambda topic, key="": heard.append((topic, key))

    def pass_by(seconds: float) -> None:
        """Nobody looks at the study but who heard its bell."""
        lab.plane.advance(seconds)
        while (TOPIC_STUDY, "study-1") in heard:
            heard.clear()
            lab.study_loop.reconcile("study-1")
            for _ in range(3):
                lab.plane.settle()

    lab.turn()
    lab.turn()
    assert [trial.stop and trial.stop["kind"] for trial in lab.trials] == [None, "early"]
    bad = lab.plane.one(Job, id=lab.trials[1].job_id)
    had = gpus_of(lab, bad)
    heard.clear()
    pass_by(1.9)
    assert len(lab.trials) == 2  # it has its GPU still
    pass_by(0.2)
    assert [(trial.number, trial.state) for trial in lab.trials] == [(1, "running"), (2, "stopped"), (3, "running")]
    after, bad = lab.plane.one(Job, id=lab.trials[2].job_id), lab.plane.one(Job, id=bad.id)
    assert (bad.state, after.state) == ("cancelled", "running")
    assert bad.finished_at == after.created_at == after.started_at
    assert gpus_of(lab, after) == had != gpus_of(lab, lab.plane.one(Job, id=lab.trials[0].job_id))


def gpus_of(lab: Lab, job: Job) -> list[Any]:
    attempt = lab.plane.one(Attempt, job_id=job.id)
    found: list[Any] = lab.plane.one(Replica, attempt_id=attempt.id).gpus
    return found
