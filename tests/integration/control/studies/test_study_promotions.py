"""Trials that go on from checkpoints of others: what the control loop begins, stops and mounts, and what a kill
leaves.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from core.db.engine import unit_of_work
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.tables import Attempt, Checkpoint, Job, Trial
from core.domain.metrics import Points
from core.ids import new_id
from core.inspection.discovery import CheckpointFiles
from core.storage import resume_sources
from executors.fake import Script
from scheduler.control.studies.study_loop import StudyLoop
from tests.integration.control.studies.study_lab import Lab


@pytest.fixture
def lab(plane: Any) -> Lab:
    return Lab(plane)


def folder_of(lab: Lab, job_id: str) -> Path:
    """Where the job's checkpoints lie."""
    return Path(lab.plane.folder, lab.plane.one(Job, id=job_id).output_path, "checkpoints")


def save(lab: Lab, job_id: str, step: int) -> None:
    """The job writes a checkpoint and tells of it."""
    folder = folder_of(lab, job_id) / f"step-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".complete").touch()
    with unit_of_work(lab.plane.sessions) as session:
        attempt = session.scalars(select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.number)).one()
        known = select(Checkpoint.id).where(Checkpoint.job_id == job_id, Checkpoint.step == step)
        if session.scalars(known).first() is None:
            path = f"checkpoints/step-{step}"
            reported = Checkpoint(
                id=new_id("ckpt"), job_id=job_id, attempt_id=attempt.id, path=path, step=step,
                created_at=lab.plane.engine.now,
            )  # fmt: skip
            session.add(reported)


HALVING: dict[str, Any] = {
    "fidelity": {"parameter": "epochs", "min": 1, "max": 9, "reduction": 3},
    "budget": {"trials": 24, "parallel": 4},
}


def run_halving(lab: Lab) -> list[Trial]:
    for _ in range(80):
        lab.turn()
        for trial in lab.trials:
            if trial.job_id in lab.reported and trial.job_id is not None:
                save(lab, trial.job_id, trial.parameters["epochs"])
        if lab.study.state != "running":
            break
    assert lab.study.state == "succeeded"
    return lab.trials


def test_the_best_of_a_rung_go_on_from_their_checkpoints_with_more(lab: Lab) -> None:
    lab.create(**HALVING)
    trials = run_halving(lab)
    by_number = {trial.number: trial for trial in trials}
    promoted = [trial for trial in trials if "parent" in trial.memo]
    # Of those that are over a third goes on; nobody waits for a whole rung, so more small ones may have begun
    # meanwhile.
    sizes = Counter(trial.parameters["epochs"] for trial in trials)
    assert sizes.keys() == {1, 3, 9}
    assert sizes[3] <= sizes[1] // 3
    assert sizes[9] <= sizes[3] // 3
    for child in promoted:
        parent = by_number[child.memo["parent"]]
        assert child.parameters == {**parent.parameters, "epochs": parent.parameters["epochs"] * 3}
        job, before = lab.plane.one(Job, id=child.job_id), lab.plane.one(Job, id=parent.job_id)
        assert job.resume_from == f"/data/resume/checkpoints/step-{parent.parameters['epochs']}"
        assert job.cloned_from == before.id
        assert job.spec["mounts"] == [
            {"volume": "output", "path": before.output_path, "at": "/data/resume", "read_only": True}
        ]
        order = lab.orders[job.id]
        assert order.env["TRAINMASTER_RESUME_FROM"] == job.resume_from
        assert f"--epochs={child.parameters['epochs']}" in str(order.command)
    assert len({trial.memo["parent"] for trial in promoted}) == len(promoted)
    [longest] = [trial for trial in trials if trial.parameters["epochs"] == 9]
    small = [trial for trial in trials if trial.parameters["epochs"] == 1]
    assert longest.parameters["x"] in sorted((trial.parameters["x"] for trial in small), reverse=True)[:3]


def test_without_a_checkpoint_a_promotion_trains_from_the_start(lab: Lab) -> None:
    lab.create(**HALVING)
    lab.run(turns=80)
    promoted = [trial for trial in lab.trials if "parent" in trial.memo]
    assert promoted
    for child in promoted:
        job = lab.plane.one(Job, id=child.job_id)
        assert (job.resume_from, job.spec["mounts"]) == (None, [])


def test_where_the_parent_made_room_meanwhile_the_next_one_is_gone_on_from(lab: Lab) -> None:
    lab.create(**HALVING)
    promoted: list[Trial] = []
    while not promoted:
        lab.turn()
        for job_id in lab.reported:
            save(lab, job_id, 1)
        lab.study_loop.reconcile("study-1")
        promoted = [trial for trial in lab.trials if "parent" in trial.memo]
    parent = next(trial for trial in lab.trials if trial.number == promoted[0].memo["parent"])
    shutil.rmtree(folder_of(lab, parent.job_id or "") / "step-1")
    for step in ("step-2", "step-3"):
        (folder_of(lab, parent.job_id or "") / step).mkdir()
        (folder_of(lab, parent.job_id or "") / step / ".complete").touch()
    lab.plane.settle()
    assert lab.orders[promoted[0].job_id or ""].env["TRAINMASTER_RESUME_FROM"] == "/data/resume/checkpoints/step-2"


def test_a_promoted_trial_without_a_metric_shows_the_likely_reason(lab: Lab) -> None:
    lab.create(**HALVING)
    lab.curve = lambda point: [(1, point["x"])] if point["epochs"] == 1 else []
    run_halving(lab)
    child = next(trial for trial in lab.trials if "parent" in trial.memo)
    assert child.state == "failed"
    assert child.reason.startswith("it never reported the metric 'score'")
    assert f". It went on from trial {child.memo['parent']}: where a script finds nothing left to train" in child.reason


POPULATION: dict[str, Any] = {
    "parameters": {"x": {"type": "float", "min": 0.1, "max": 10, "scale": "log"}},
    "population": {"interval": 2},
    "budget": {"trials": 12, "parallel": 4},
}


class Nursery:
    """Members train a step each turn, save each, and get on by how near their ``x`` is to 1; heirs begin where they
    are.
    """

    def __init__(self, lab: Lab, steps: int = 16) -> None:
        self.lab, self.steps = lab, steps
        self.reported: dict[str, list[tuple[int, float]]] = {}
        lab.script = lambda _point: Script(run_for=timedelta(hours=1))

    def turn(self) -> None:
        lab = self.lab
        lab.study_loop.reconcile("study-1")
        lab.plane.settle()
        trials = lab.trials
        numbers = {trial.number: trial for trial in trials}
        with unit_of_work(lab.plane.sessions) as session:
            for trial in trials:
                if trial.job_id is not None and session.get_one(Job, trial.job_id).state == "running":
                    self.train(session, trial, numbers)
        for job_id, curve in self.reported.items():
            shutil.rmtree(folder_of(lab, job_id), ignore_errors=True)
            with unit_of_work(lab.plane.sessions) as session:
                for checkpoint in session.scalars(select(Checkpoint).where(Checkpoint.job_id == job_id)):
                    session.delete(checkpoint)
            save(lab, job_id, curve[-1][0])
        lab.plane.advance(2)

    def train(self, session: Session, trial: Trial, numbers: dict[int, Trial]) -> None:
        assert trial.job_id is not None
        curve = self.reported.setdefault(trial.job_id, [])
        step, value = (0, 0.0)
        if curve:
            step, value = curve[-1]
        elif "parent" in trial.memo:
            resumed = session.get_one(Job, trial.job_id).resume_from or ""
            step = int(resumed.rpartition("-")[2])
            value = dict(self.reported[str(numbers[trial.memo["parent"]].job_id)])[step]
        curve.append((step + 1, value + 1 / (1 + abs(math.log(trial.parameters["x"])))))
        steps, values = zip(curve[-1], strict=True)
        points = Points(steps, [0], values)
        add_metrics(session, StreamKey(trial.job_id, 1, "worker", 0), {"score": points}, now=self.lab.plane.engine.now)


def test_the_worst_of_a_population_are_replaced_from_the_best(lab: Lab) -> None:
    lab.create(**POPULATION)
    nursery = Nursery(lab)
    for _ in range(12):
        nursery.turn()
    trials = lab.trials
    promoted = [trial for trial in trials if "parent" in trial.memo]
    assert promoted
    by_number = {trial.number: trial for trial in trials}
    assert sum(trial.state == "running" for trial in trials) == 4
    assert len(trials) == 4 + len(promoted) <= 12
    for child in promoted:
        parent, gone = by_number[child.memo["parent"]], by_number[child.memo["replaces"]]
        assert gone.state == "stopped"
        assert "gives its place" in gone.reason
        ratio = child.parameters["x"] / parent.parameters["x"]
        again_state = not (
            math.isclose(ratio, 1.2) or math.isclose(ratio, 1 / 1.2) or child.parameters["x"] in (0.1, 10)
        )
        assert again_state or child.parameters["x"] != parent.parameters["x"]
        job = lab.plane.one(Job, id=child.job_id)
        assert job.cloned_from == parent.job_id
        # It goes on where the parent was, and is no worse than that.
        first = nursery.reported[child.job_id or ""][0]
        assert first[0] > 2
    assert len({child.memo["replaces"] for child in promoted}) == len(promoted)


def test_no_member_is_replaced_where_no_better_one_has_a_checkpoint(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.create(**POPULATION)
    nursery = Nursery(lab)
    monkeypatch.setattr("tests.integration.control.studies.test_study_promotions.save", lambda *_: None)
    for _ in range(6):
        nursery.turn()
    assert [trial.state for trial in lab.trials] == ["running"] * 4


def test_where_the_checkpoints_are_gone_a_new_member_takes_the_place(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.create(**POPULATION)
    nursery = Nursery(lab)
    while all(trial.stop is None for trial in lab.trials):
        nursery.turn()
    monkeypatch.setattr("tests.integration.control.studies.test_study_promotions.save", lambda *_: None)
    for job_id in nursery.reported:
        shutil.rmtree(folder_of(lab, job_id))
    with unit_of_work(lab.plane.sessions) as session:
        session.execute(delete(Checkpoint))
    for _ in range(3):
        nursery.turn()
    trials = lab.trials
    assert [trial.state for trial in trials] == ["stopped" if trial.stop else "running" for trial in trials]
    assert sum(trial.state == "running" for trial in trials) == 4
    assert not any("parent" in trial.memo for trial in trials)


def test_no_replacement_goes_on_from_a_member_that_has_ended(lab: Lab) -> None:
    lab.create(**POPULATION)
    nursery = Nursery(lab)
    while all(trial.stop is None for trial in lab.trials):
        nursery.turn()
    gone = next(trial for trial in lab.trials if trial.stop)
    assert gone.stop is not None
    best = next(trial for trial in lab.trials if trial.number == gone.stop["parents"][0])
    with unit_of_work(lab.plane.sessions) as session:
        session.get_one(Job, best.job_id).state = "succeeded"
    lab.study_loop.reconcile("study-1")
    lab.plane.settle()
    lab.study_loop.reconcile("study-1")
    trials = lab.trials
    assert trials[gone.number - 1].state == "stopped"
    assert len(trials) > 4
    assert not any("parent" in trial.memo for trial in trials)


def test_a_kill_between_end_and_replacement_leaves_one_replacement(lab: Lab) -> None:
    lab.create(**POPULATION)
    nursery = Nursery(lab)
    for turn in range(12):
        nursery.turn()
        if turn % 3 == 0:
            lab.restart()
    trials = lab.trials
    replaced = [trial.memo["replaces"] for trial in trials if "replaces" in trial.memo]
    assert replaced
    assert len(set(replaced)) == len(replaced)
    assert sum(trial.state == "running" for trial in trials) == 4


def test_a_population_ends_when_its_members_have(lab: Lab) -> None:
    lab.create(**{**POPULATION, "budget": {"max_time": "1h", "parallel": 4}})
    lab.script = lambda _point: Script(run_for=timedelta(seconds=5))
    assert isinstance(lab.study_loop, StudyLoop)
    ended = lab.run()
    assert (ended.state, ended.reason) == ("succeeded", "Its population has come to its end.")
    assert len(lab.trials) == 4


def test_files_are_listed_outside_of_transactions_and_the_lease_lives_through_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.create(**HALVING)
    opened = 0
    enter, leave = Session.__enter__, Session.__exit__

    def entered(self: Session) -> Session:
        nonlocal opened
        opened += 1
        return enter(self)

    def left(self: Session, *reported: Any) -> None:
        nonlocal opened
        opened -= 1
        leave(self, *reported)

    monkeypatch.setattr(Session, "__enter__", entered)
    monkeypatch.setattr(Session, "__exit__", left)
    listed = []

    def slow(_root: Any) -> list[CheckpointFiles]:
        listed.append(opened)
        lab.plane.engine.now += lab.plane.control.lease_ttl * 0.6  # two of them take longer than the lease lives
        return []

    monkeypatch.setattr(resume_sources, "find_checkpoints", slow)
    run_halving(lab)
    assert listed
    assert set(listed) == {0}
