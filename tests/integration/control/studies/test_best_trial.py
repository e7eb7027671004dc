"""What becomes of a study's best trial, and of the trials of somebody who lost his rights."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, update

from core.db.engine import unit_of_work
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.tables import Event, Job, Membership, ModelVersion, Study, User
from core.domain.metrics import Points
from core.registry.versions import lineage_of
from executors.fake import Script
from tests.integration.control.studies.study_lab import Lab


@pytest.fixture
def lab(plane: Any) -> Lab:
    return Lab(plane)


def test_the_best_trial_is_registered_in_the_transaction_that_ends_the_study(lab: Lab) -> None:
    lab.create(winner={"model": "digits", "aliases": ["best"]}, initial=[{"x": 0.2}, {"x": 0.99}])
    ended = lab.run()
    best = max(lab.trials, key=lambda trial: trial.result["score"])
    (version,) = lab.plane.all(ModelVersion)
    assert ended.best_trial == {"trial": best.number, "job": best.job_id, "version": version.id}
    assert (version.number, version.state, version.job_id) == (1, "registering", best.job_id)
    assert version.labels == {"study": "search", "trial": str(best.number)}
    assert version.registration == {"aliases": ["best"], "user": "ann", "keeps_better": True}


def test_the_winner_is_run_once_more_where_its_spec_says_so(lab: Lab) -> None:
    lab.create(winner={"model": "digits", "arguments": ["--final"]}, initial=[{"x": 0.2}, {"x": 0.99}])
    ended = lab.run()
    (version,) = lab.plane.all(ModelVersion)
    assert version.state == "waiting"
    assert len(lab.trials) == 4  # the one more run is no trial
    for _ in range(3):
        lab.turn()
    job = lab.plane.one(Job, id=ended.best_trial["job"])
    assert (job.name, job.state) == ("search-best", "succeeded")
    assert lab.orders[job.id].command == "train --x=0.99 --final"
    assert job.spec["labels"] == {"study": "search", "trial": "2", "winner": "true"}
    assert version.job_id == job.id
    # Its own run told it something else than the trial did.
    with unit_of_work(lab.plane.sessions) as session:
        key = StreamKey(job.id, 1, "worker", 0)
        add_metrics(session, key, {"score": Points([9], [0], [0.5])}, now=lab.plane.engine.now)
    with unit_of_work(lab.plane.sessions) as session:
        found = lineage_of(session, session.get_one(Job, job.id), checkpoint=None, step=None, user="")
        assert found.metrics["score"] == 0.5


def test_an_extended_study_registers_a_better_trial_and_the_same_one_not_again(lab: Lab) -> None:
    lab.create(winner="digits", initial=[{"x": 1.0}], budget={"trials": 1})
    lab.run()
    with unit_of_work(lab.plane.sessions) as session:
        row = session.get_one(Study, "study-1")
        row.state, row.generation, row.finished_at = "running", row.generation + 1, None
        row.spec = {**row.spec, "budget": {**row.spec["budget"], "trials": 2}}
    ended = lab.run()
    assert ended.best_trial["trial"] == 1
    assert len(lab.plane.all(ModelVersion)) == 1


def test_a_study_of_which_nothing_succeeds_registers_nothing(lab: Lab) -> None:
    lab.create(winner="digits", budget={"trials": 2}, template={"command": "train", "cpu": "1", "max_restarts": 0})
    lab.script = lambda _point: Script(run_for=timedelta(seconds=1), exit_code=1)
    assert lab.run().state == "failed"
    assert lab.study.best_trial is None
    assert lab.plane.all(ModelVersion) == []


@pytest.mark.parametrize("lost", ["membership", "role", "account"])
def test_no_trials_are_submitted_for_a_user_without_rights(lab: Lab, lost: str) -> None:
    lab.create()
    lab.turn()
    with unit_of_work(lab.plane.sessions) as session:
        match lost:
            case "membership":
                session.execute(delete(Membership))
            case "role":
                session.execute(update(Membership).values(role="viewer"))
            case _:
                session.execute(update(User).values(disabled_at=lab.plane.engine.now))
    paused = lab.run(until=("paused",))
    assert "user ann, in whose name its trials run" in paused.reason
    lab.run(turns=6, until=("paused",))
    for _ in range(4):
        lab.turn()
    # Those that ran have ended by themselves; nothing was begun.
    assert [trial.state for trial in lab.trials] == ["succeeded", "succeeded"]
    assert [event.reason for event in lab.plane.all(Event, kind="study.paused")] == [paused.reason]


def test_the_best_trial_is_not_run_again_for_a_user_without_rights(lab: Lab) -> None:
    lab.create(winner={"model": "digits", "arguments": ["--final"]}, budget={"trials": 50, "parallel": 2})
    while not any(trial.state == "succeeded" for trial in lab.trials):
        lab.turn()
    with unit_of_work(lab.plane.sessions) as session:
        session.execute(delete(Membership))
        session.execute(update(Study).values(state="stopping", generation=Study.generation + 1))
    ended = lab.run()
    assert ended.state == "cancelled"
    assert "not registered: user ann, in whose name its trials run, may not submit jobs" in ended.reason
    assert ended.best_trial is None
    assert lab.plane.all(ModelVersion) == []
    assert {job.id for job in lab.plane.all(Job)} == {trial.job_id for trial in lab.trials}


def test_an_admin_of_the_platform_needs_no_membership(lab: Lab) -> None:
    lab.create()
    with unit_of_work(lab.plane.sessions) as session:
        session.execute(delete(Membership))
        session.execute(update(User).values(is_admin=True))
    assert lab.run().state == "succeeded"
