"""Seeded fault schedules over studies: processes are killed between any two steps, and no trial is lost, doubled or
forgotten.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

import pytest
import structlog
from sqlalchemy import select
from trainmaster.studies import parse_study
from trainmaster.wire.studies import TrialComplete

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller
from api.studies import ask_tell, service
from api.studies.access import StudyAccess
from core.db.engine import unit_of_work
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.tables import Job, Membership, Study, Trial
from core.domain.errors import Conflict, IllegalTransition, StaleWrite
from core.domain.jobs.states import JobState
from core.domain.metrics import Points
from core.domain.studies.states import StudyEvent, StudyState, TrialState
from executors.base import ReplicaOrder
from executors.fake import FakeEngine, Script
from tests.faults.jobs import add_platform
from tests.faults.simulated import NODES, Chances, Process, World

SEEDS = range(9000, 9000 + int(os.environ.get("TRAINMASTER_FAULT_SEEDS", "30")) // 3)
ANN = Caller("user-1", "ann", True, frozenset(), "token-1", {})
# More kills and lost answers than jobs meet: a study has fewer steps.
CHANCES = Chances(kill=0.012, commit_unheard=0.015)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_trial_is_lost_doubled_or_forgotten(seed: int, sessions: Any) -> None:
    print(f"seed {seed}")
    with structlog.testing.capture_logs() as logs:
        Studies(seed, sessions).run()
    errors = [line for line in logs if line["log_level"] == "error"]
    assert not errors


@pytest.mark.postgres
@pytest.mark.skipif(not os.environ.get("TRAINMASTER_TEST_DATABASE_URL"), reason="needs TRAINMASTER_TEST_DATABASE_URL")
@pytest.mark.parametrize("seed", range(9500, 9503))
def test_none_is_on_postgresql(seed: int, postgres_sessions: Any) -> None:
    test_no_trial_is_lost_doubled_or_forgotten(seed, postgres_sessions)


def test_processes_die_in_these_schedules_while_trials_run(sessions: Any) -> None:
    studies = Studies(9000, sessions)
    studies.run()
    assert studies.world.made > studies.world.process_count


def test_trials_are_lost_in_these_schedules_where_a_program_forgets_what_it_requested(
    sessions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So many answers are lost that a step more or less in a schedule does not matter here.
    monkeypatch.setattr(sys.modules[__name__], "CHANCES", replace(CHANCES, commit_unheard=0.15))
    studies = Studies(9001, sessions, asker="forgets")
    studies.run()
    with sessions() as session:
        lost = session.scalars(select(Trial).where(Trial.study_id == "asked", Trial.state == TrialState.FAILED)).all()
    assert lost


class Studies:
    """One seed: a study whose trials are jobs, one whose points a program asks for, and a user who pauses and
    resumes.
    """

    def __init__(self, seed: int, sessions: Any, asker: str | None = None) -> None:
        draw = Random(f"studies {seed}")
        self.sessions, self.seed = sessions, seed
        self.parallel = {"jobs": draw.randint(1, 4), "asked": draw.randint(1, 3)}
        self.trials = {"jobs": draw.randint(4, 9), "asked": draw.randint(4, 9)}
        self.algorithm = draw.choice(["random", "tpe", "qmc"])
        self.run_s = draw.uniform(0, 6)
        self.stopping = draw.choice([None, "median"])
        # How the program that asks finds out what it was given when an answer is lost: by the key of its request, by
        # its own name, or not at all: then what it was given is lost.
        self.asker = asker or draw.choice(["key", "client", "forgets"])
        self.key = 0
        self.given: dict[str, list[int]] = {}
        self.engine = FakeEngine(NODES, script_for=self._script)
        self.world = World(seed, self.engine, sessions, CHANCES, process_count=draw.randint(1, 3), has_studies=True)
        sessions.class_.world = self.world
        self.world.check_truth = self.check_truth
        self.world.ask = self._ask
        self.reported: set[tuple[str, int]] = set()
        add_platform(sessions, self.engine.now)
        with unit_of_work(sessions) as session:
            session.add(Membership(project_id="project-1", user_id="user-1", role="member"))
        for name in ("jobs", "asked"):
            self._create(name)
        self.is_stopped = draw.random() < 0.2
        if draw.random() < 0.4:
            at = draw.uniform(1, 15)
            self.world.at(at, lambda: self._move(StudyEvent.PAUSE))
            self.world.at(at + draw.uniform(1, 8), lambda: self._move(StudyEvent.RESUME))
        if self.is_stopped:
            self.world.at(draw.uniform(3, 25), lambda: self._move(StudyEvent.STOP))

    def run(self) -> None:
        self.world.run(40)
        self.world.calm_down()
        self.world.run(45)  # whoever slept past his lease wakes up
        self._move(StudyEvent.RESUME)
        self.world.run(3000, until=self._is_over)
        self.world.run(55)  # a sweep's time
        self.check_end()

    # Users

    def _create(self, name: str) -> None:
        raw: dict[str, Any] = {
            "name": name, "parameters": {"x": {"type": "float", "min": 0, "max": 1}}, "metric": "score",
            "goal": "maximize", "algorithm": self.algorithm, "seed": self.seed,
            "budget": {"trials": self.trials[name], "parallel": self.parallel[name], "failed_trials": 100},
            "initial": [{"x": 0.25}, {"x": 0.75}],
        }  # fmt: skip
        if name == "jobs":
            raw |= {"template": {"command": "train", "cpu": "1", "max_restarts": 50}}
            raw |= {} if self.stopping is None else {"stopping": self.stopping}
        elif self.asker == "forgets":
            raw |= {"lost_after": 90}
        spec = parse_study(raw)
        with unit_of_work(self.sessions) as session:
            now = self.engine.now
            session.add(
                Study(
                    id=name, project_id="project-1", user_id="user-1", name=name, spec=spec.model_dump(mode="json"),
                    seed=spec.seed, state="running", output_volume="output", created_at=now, started_at=now,
                    updated_at=now,
                )
            )  # fmt: skip

    def _move(self, event: StudyEvent) -> None:
        for name in ("jobs", "asked"):
            try:
                with unit_of_work(self.sessions) as session:
                    service.request_transition(UnitOfWork(session, self.engine.now), self._access(name), event, "")
            except (IllegalTransition, StaleWrite):
                pass

    def _ask(self, process: Process) -> None:
        """What the API does for a program that asks for a point and tells what came out; it may die between any two
        steps.
        """
        key = f"key-{self.key}" if self.asker == "key" else None
        requested = ask_tell.SuggestionRequest(1, "program" if self.asker == "client" else None, key)
        with unit_of_work(process.control.sessions) as session:
            work = UnitOfWork(session, self.engine.now)
            (found,) = ask_tell.take(work, self._access("asked"), [requested])
        for topic, study in work.notifications:
            self.world.notify(topic, study)
        trials = found.suggestions.trials if isinstance(found, ask_tell.SuggestionAnswer) else []
        if key is not None and trials:
            numbers = [trial.number for trial in trials]
            assert self.given.setdefault(key, numbers) == numbers, "the same key gave another trial"
        for trial in trials:
            try:
                with unit_of_work(process.control.sessions) as session:
                    work = UnitOfWork(session, self.engine.now)
                    reported = TrialComplete(result={"score": trial.parameters["x"]})
                    ask_tell.complete(work, self._access("asked"), trial.number, reported)
            except Conflict:
                pass  # told already, and the answer was lost; or the study was stopped
        if trials and key == f"key-{self.key}":
            self.key += 1

    def _access(self, name: str) -> StudyAccess:
        return StudyAccess(ANN, name, "member")

    def _script(self, _order: ReplicaOrder) -> Script:
        return Script(start_after=timedelta(seconds=0.2), run_for=timedelta(seconds=self.run_s))

    # What must hold

    def check_truth(self) -> None:
        """Between two moments. Jobs report here, too: each attempt once."""
        with unit_of_work(self.sessions) as session:
            running = Counter(session.scalars(select(Trial.study_id).where(Trial.state == TrialState.RUNNING)))
            jobs = session.execute(
                select(Job.id, Job.attempt_count, Job.trial).where(
                    Job.state.in_([JobState.RUNNING, JobState.SUCCEEDED]), Job.trial.is_not(None)
                )
            ).all()
            for job in jobs:
                if (job.id, job.attempt_count) not in self.reported:
                    self.reported.add((job.id, job.attempt_count))
                    score = Points([1], [0], [job.trial["parameters"]["x"]])
                    key = StreamKey(job.id, job.attempt_count, "worker", 0)
                    add_metrics(session, key, {"score": score}, now=self.engine.now)
        assert all(count <= self.parallel[name] for name, count in running.items()), running
        assert not self.world.violations

    def _is_over(self) -> bool:
        with self.sessions() as session:
            states = session.scalars(select(Study.state)).all()
        return all(StudyState(state).is_terminal for state in states)

    def check_end(self) -> None:
        assert not self.world.violations
        assert not self.engine.live(), "a trial's job runs though its study is over"
        with self.sessions() as session:
            for name in ("jobs", "asked"):
                self._check_study(session, session.get_one(Study, name))
            # Every job is one trial's: none was made twice, none is known to no trial.
            jobs = {job.id: job for job in session.scalars(select(Job))}
            trials = session.scalars(select(Trial).where(Trial.study_id == "jobs")).all()
            assert {trial.job_id for trial in trials} == jobs.keys()
            for trial in trials:
                job = jobs[trial.job_id or ""]
                assert job.trial is not None
                assert (job.trial["study_id"], job.trial["number"]) == ("jobs", trial.number)
                assert JobState(job.state).is_terminal
                expected = {
                    JobState.SUCCEEDED: {TrialState.SUCCEEDED},
                    JobState.CANCELLED: {TrialState.CANCELLED, TrialState.STOPPED},
                }.get(JobState(job.state), {TrialState.FAILED})
                assert trial.state in expected, (self.seed, trial.number, trial.state, trial.reason, job.state)
                if trial.state == TrialState.SUCCEEDED:
                    assert trial.result == {"score": trial.parameters["x"]}

    def _check_study(self, session: Any, study: Study) -> None:
        reported = f"seed {self.seed} {study.name}: {study.state} {study.reason}"
        trials = session.scalars(select(Trial).where(Trial.study_id == study.id).order_by(Trial.number)).all()
        assert [trial.number for trial in trials] == list(range(1, study.trial_count + 1)), reported
        assert all(TrialState(trial.state).is_terminal for trial in trials), reported
        again = {trial.memo["again"]: trial for trial in trials if "again" in trial.memo}
        for trial in trials:
            if trial.job_id is None and trial.state == TrialState.FAILED:
                assert self.asker == "forgets", f"{reported}: nobody was to lose trial {trial.number}"
                assert trial.reason.startswith("Lost: "), reported
            # A point is tried anew after its trial was lost, and for no other reason.
            if trial.number in again:
                assert trial.state == TrialState.FAILED, reported
                assert again[trial.number].parameters == trial.parameters, reported
        points = [trial.parameters["x"] for trial in trials if "again" not in trial.memo]
        assert len(set(points)) == len(points), reported
        assert points[:2] == [0.25, 0.75][: len(points)], reported
        if self.is_stopped and study.state == StudyState.CANCELLED:
            assert len(trials) <= self.trials[study.name], reported
        else:
            assert study.state == StudyState.SUCCEEDED, reported
            assert len(trials) == self.trials[study.name], reported
