"""Studies in the control loop, with the fake engine: what begins, what counts, what ends early, and what a kill leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, update
from sqlalchemy.orm import Session, sessionmaker
from trainmaster.studies import Algorithm

from core.bell import TOPIC_STUDY
from core.db import leases
from core.db.engine import unit_of_work
from core.db.repositories.metrics import StreamKey, add_metrics
from core.db.tables import Event, Job, Membership, ModelVersion, Study, User
from core.domain.errors import StaleWrite
from core.domain.metrics.points import Points
from core.registry.lineage import lineage_of
from executors.fake import ProcessKilled, Script
from scheduler.control import fence
from scheduler.control.studies.keeper import StudyKeeper
from scheduler.control.studies.round import METRIC_GRACE
from scheduler.tuning import Proposal, Question, propose
from scheduler.tuning.proposers import Proposers
from tests.integration.control.study_lab import Lab


@pytest.fixture
def lab(plane: Any) -> Lab:
    return Lab(plane)


def test_trials_are_jobs_and_their_metrics_the_results(lab: Lab) -> None:
    lab.create()
    ended = lab.run()
    assert (ended.state, ended.reason) == ("succeeded", "All 4 trials are done.")
    assert [(trial.number, trial.state) for trial in lab.trials] == [(n, "succeeded") for n in (1, 2, 3, 4)]
    for trial in lab.trials:
        job = lab.plane.one(Job, id=trial.job_id)
        assert trial.result == {"score": trial.parameters["x"]}
        assert (job.name, job.state) == (f"search-{trial.number}", "succeeded")
        order = lab.orders[job.id]
        assert order.command == f"train --x={json.dumps(trial.parameters['x'])}"
        assert order.env["CLOUD_ML_TRIAL_ID"] == order.env["TRAINMASTER_TRIAL"] == str(trial.number)
        assert json.loads(order.files["/data/.trainmaster/parameters.json"]) == trial.parameters
        assert job.spec["labels"] == {"study": "search", "trial": str(trial.number)}


def test_at_most_so_many_at_once_and_the_end_of_one_rings_for_the_next(lab: Lab) -> None:
    lab.create()
    rings: list[tuple[str, str]] = []
    lab.plane.ring = lambda topic, key="": rings.append((topic, key))
    lab.keeper.keep("study-1")
    assert len(lab.trials) == 2
    lab.keeper.keep("study-1")
    assert len(lab.trials) == 2
    lab.plane.settle()
    lab.report()
    rings.clear()
    lab.plane.advance(6)
    assert (TOPIC_STUDY, "study-1") in rings
    lab.keeper.keep("study-1")
    assert [trial.state for trial in lab.trials] == ["succeeded", "succeeded", "running", "running"]


def test_a_trial_without_its_metric_says_where_it_was_looked_for(lab: Lab) -> None:
    lab.create(budget={"trials": 1})
    lab.curve = lambda _point: []
    ended = lab.run()
    assert ended.state == "failed"
    (trial,) = lab.trials
    assert "never reported the metric 'score'" in trial.reason
    assert "hypertune's file" in trial.reason
    assert "`score=0.1` alone is none" in trial.reason
    assert trial.reason.endswith("it was over within seconds, or nobody could look inside it")
    assert trial.ended_at - lab.plane.one(Job, id=trial.job_id).finished_at >= METRIC_GRACE


def test_a_trial_without_its_metric_names_its_own_patterns_and_what_came(lab: Lab) -> None:
    template = {"command": "train", "cpu": "1", "metric_patterns": ["Epoch {epoch} acc {acc}", "loss {loss}"]}
    lab.create(budget={"trials": 1}, template=template)
    lab.curve, lab.metrics = lambda _point: [(1, 0.5)], ("acc", "system/cpu")
    lab.run()
    reason = lab.trials[0].reason
    assert "metric_patterns: `Epoch {epoch} acc {acc}`, `loss {loss}`, of which none has {score}" in reason
    assert "step=3" not in reason  # the usual lines are not looked at beside them
    assert reason.endswith("; it reported acc")


def test_a_trial_that_told_nothing_but_its_resources_was_looked_at(lab: Lab) -> None:
    template = {"command": "train", "cpu": "1", "metric_patterns": "acc {score}"}
    lab.create(budget={"trials": 1}, template=template)
    lab.curve, lab.metrics = lambda _point: [(1, 0.5)], ("system/cpu",)
    lab.run()
    assert lab.trials[0].reason.endswith("metric_patterns: `acc {score}`; it reported no metric at all")


def test_not_a_number_is_no_result(lab: Lab) -> None:
    lab.create(budget={"trials": 1}, measurement="last")
    lab.curve = lambda _point: [(1, 0.5), (2, float("nan"))]
    lab.run()
    assert lab.trials[0].reason == "its last value of the metric 'score' is not a number"


@pytest.mark.parametrize(("last", "said"), [("nan", "not a number"), ("inf", "infinite")])
def test_a_trial_that_diverged_keeps_its_best_and_says_so(lab: Lab, last: str, said: str) -> None:
    lab.create(budget={"trials": 1})
    lab.curve = lambda _point: [(1, 0.5), (2, float(last)), (3, float(last))]
    lab.run()
    (trial,) = lab.trials
    assert (trial.state, trial.result) == ("succeeded", {"score": 0.5})
    assert trial.reason == f"Its last value of the metric 'score' is {said}: it diverged after step 1."


def test_an_infinite_metric_is_told_as_such(lab: Lab) -> None:
    lab.create(budget={"trials": 1})
    lab.curve = lambda _point: [(1, float("-inf"))]
    lab.run()
    assert lab.trials[0].reason == "its last value of the metric 'score' is infinite"


def test_a_study_of_which_all_fails_ends_soon_and_says_what_most_said(lab: Lab) -> None:
    lab.create(budget={"trials": 100, "parallel": 2}, template={"command": "train", "cpu": "1", "max_restarts": 0})
    lab.script = lambda _point: Script(run_for=timedelta(seconds=1), exit_code=1, log_tail="ValueError: no such file")
    ended = lab.run()
    assert ended.state == "failed"
    assert "trials all failed" in ended.reason
    assert "said: " in ended.reason
    assert len(lab.trials) < 10


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
    told = [line.data for line in lab.plane.all(Event, job_id=bad.job_id) if line.kind == "job.cancel_requested"]
    assert told == [{"code": "stopped_early"}]


def test_a_stopped_study_cancels_what_runs_and_keeps_what_it_found(lab: Lab) -> None:
    lab.create(budget={"trials": 50, "parallel": 3})
    lab.script = lambda point: Script(run_for=timedelta(seconds=1 if point["x"] < 0.5 else 1000))
    for _ in range(6):
        lab.turn()
    with unit_of_work(lab.plane.sessions) as session:
        session.execute(update(Study).values(state="stopping", generation=Study.generation + 1))
    ended = lab.run()
    assert ended.state == "cancelled"
    assert {trial.state for trial in lab.trials} <= {"succeeded", "cancelled"}
    assert all(job.state in ("succeeded", "cancelled") for job in lab.plane.all(Job))


def test_a_paused_study_begins_nothing_but_collects(lab: Lab) -> None:
    lab.create()
    lab.turn()
    with unit_of_work(lab.plane.sessions) as session:
        session.execute(update(Study).values(state="paused", generation=Study.generation + 1))
    for _ in range(6):
        lab.turn()
    assert [trial.state for trial in lab.trials] == ["succeeded", "succeeded"]


def test_a_lost_bell_is_made_good_however_many_studies_there_are(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.create()
    with unit_of_work(lab.plane.sessions) as session:
        first = session.get_one(Study, "study-1")
        told = {column.key: getattr(first, column.key) for column in Study.__table__.columns}
        session.add_all(Study(**{**told, "id": f"study-{number}"}) for number in range(2, 8))
    monkeypatch.setattr("scheduler.control.studies.keeper._LOOKED_AT", 2)
    rings: list[tuple[str, str]] = []
    lab.plane.ring = lambda topic, key="": rings.append((topic, key))
    lab.keeper.ring_due()
    assert rings == [(TOPIC_STUDY, f"study-{number}") for number in range(1, 8)]


def test_trials_that_fit_nowhere_are_told(lab: Lab) -> None:
    lab.create(template={"command": "train", "gpus": 64})
    for _ in range(3):
        lab.turn()
    assert "cannot start" in lab.study.note


def test_gpu_hours_of_a_trial_that_was_started_again_count_while_it_runs(lab: Lab) -> None:
    lab.create(template={"command": "train", "gpus": 1, "max_restarts": 2}, budget={"gpu_hours": 0.02, "parallel": 1})
    begun: list[Any] = []

    def script(point: Any) -> Script:
        begun.append(point)
        return (
            Script(run_for=timedelta(seconds=5), exit_code=1) if len(begun) == 1 else Script(run_for=timedelta(hours=9))
        )

    lab.script = script
    ended = lab.run(turns=90)
    assert len(begun) == 2
    assert "0.02 GPU-hours are spent" in ended.reason


def test_points_of_the_user_that_nobody_got_before_the_end_come_first_when_it_is_extended(lab: Lab) -> None:
    own = [{"x": 0.1}, {"x": 0.2}]
    lab.create(template=None, initial=own)
    lab.keeper.keep("study-1")
    assert [one["parameters"] for one in lab.study.prepared[:2]] == own
    for state in ("stopping", "running"):
        with unit_of_work(lab.plane.sessions) as session:
            session.execute(update(Study).values(state=state, generation=Study.generation + 1))
        lab.keeper.keep("study-1")
    assert [one["parameters"] for one in lab.study.prepared[:2]] == own
    assert len(lab.study.prepared) > 2


def test_a_finite_space_ends_the_study_when_all_was_tried(lab: Lab) -> None:
    lab.create(
        parameters={"x": {"type": "discrete", "values": [0.25, 0.5, 0.75]}},
        algorithm="grid",
        budget={"trials": 100, "parallel": 2},
    )
    ended = lab.run()
    assert (ended.state, ended.reason) == ("succeeded", "Every point of the space was tried.")
    assert sorted(trial.parameters["x"] for trial in lab.trials) == [0.25, 0.5, 0.75]


@pytest.mark.parametrize("algorithm", ["tpe", "cma-es"])
def test_algorithms_go_on_from_results_in_the_database(lab: Lab, algorithm: str) -> None:
    parameters = {name: {"type": "float", "min": 0, "max": 1} for name in ("x", "y")}
    lab.create(algorithm=algorithm, parameters=parameters, budget={"trials": 12, "parallel": 6})
    for _ in range(40):
        lab.turn()
        if lab.study.state == "succeeded":
            break
        lab.restart()  # nothing but the rows is known
    assert len({json.dumps(trial.parameters, sort_keys=True) for trial in lab.trials}) == 12


def test_another_process_writes_nothing_while_this_one_is_at_it(lab: Lab) -> None:
    lab.create()
    other = StudyKeeper(replace(lab.plane.control, holder="other"))
    with unit_of_work(lab.plane.sessions) as session:
        held = leases.acquire(
            session, "study:study-1", holder="test", now=lab.plane.engine.now, ttl=timedelta(seconds=15)
        )
    other.keep("study-1")
    assert lab.trials == []
    lab.plane.engine.advance(timedelta(seconds=16))
    other.keep("study-1")
    assert len(lab.trials) == 2
    assert held is not None
    with pytest.raises(StaleWrite), fence.fenced(lab.plane.control, held):
        pass


def test_points_for_gp_are_drawn_ahead_and_used_when_a_trial_ends(lab: Lab) -> None:
    asked: list[Question] = []

    class Slow(Proposers):
        def __call__(self, question: Question) -> list[Proposal]:
            asked.append(question)
            return propose(replace(question, algorithm=Algorithm.RANDOM))

    lab.create(algorithm="gp", budget={"trials": 30, "parallel": 2})
    lab.keeper = StudyKeeper(lab.plane.control, Slow())
    while lab.study.trial_count < 14:
        lab.turn()
    ahead = lab.study.prepared
    assert len(ahead) == 2
    assert all(len(question.finished) >= 8 for question in asked[-2:])
    while lab.study.trial_count < 16:
        lab.turn()
    points = [trial.parameters for trial in lab.trials]
    assert ahead[0]["parameters"] in points
    assert len({point["x"] for point in points}) == len(points)


@pytest.mark.parametrize("has_torch", [False, True])
def test_a_study_whose_gp_fails_goes_on_with_tpe_and_says_so(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, has_torch: bool
) -> None:
    monkeypatch.setattr("scheduler.tuning.proposers.gp_may_draw", lambda _: has_torch)
    monkeypatch.setattr("scheduler.control.studies.round.gp_is_there", lambda: has_torch)

    class Failing:
        def submit(self, *_: object) -> Any:
            raise ImportError("a part of scipy")

        def shutdown(self, **_: object) -> None:
            pass

    proposers = Proposers()
    monkeypatch.setattr(proposers, "_pool", Failing())
    lab.create(algorithm="gp", budget={"trials": 14, "parallel": 2})
    lab.keeper = StudyKeeper(lab.plane.control, proposers)
    notes = set()
    for _ in range(40):
        lab.turn()
        notes.add(lab.study.note)
        if lab.study.state == "succeeded":
            break
    assert (lab.study.state, len(lab.trials)) == ("succeeded", 14)
    (told,) = notes - {""}
    assert "GP could not draw some" in told


# --- kills


class KilledSession(Session):
    """Dies at the chosen step: steps are the beginning of each transaction and the moment after its commit."""

    step = 0
    dies_at = -1

    def __enter__(self) -> Any:
        self._count()
        return super().__enter__()

    def __exit__(self, *ends: object) -> None:
        super().__exit__(*ends)
        if ends[0] is None:
            self._count()

    @classmethod
    def _count(cls) -> None:
        cls.step += 1
        if cls.step == cls.dies_at:
            raise ProcessKilled


@pytest.fixture
def killer(lab: Lab) -> Iterator[Callable[[int], None]]:
    """``killer(n)``: the next keeper dies at its step n."""
    calm = lab.plane.sessions

    def arm(step: int) -> None:
        KilledSession.step, KilledSession.dies_at = 0, step
        lab.keeper = StudyKeeper(
            replace(
                lab.plane.control,
                sessions=sessionmaker(calm.kw["bind"], class_=KilledSession, expire_on_commit=False),
            )
        )

    yield arm
    KilledSession.dies_at = -1


def test_killed_at_any_step_no_trial_is_lost_doubled_or_forgotten(lab: Lab, killer: Callable[[int], None]) -> None:
    lab.create(budget={"trials": 12, "parallel": 2}, stopping={"rule": "median", "min_trials": 2})
    lab.script = lambda _point: Script(run_for=timedelta(seconds=3))
    kills = 0
    for step in [*range(1, 14)] * 2:
        killer(step)
        try:
            lab.keeper.keep("study-1")
        except ProcessKilled:
            kills += 1
            lab.plane.engine.advance(timedelta(seconds=20))  # until its lease is over
        KilledSession.dies_at = -1
        lab.restart()
        lab.turn()
    assert kills > 10
    ended = lab.run(until=("succeeded",))
    numbers = [trial.number for trial in lab.trials]
    assert numbers == list(range(1, 13)) == list(range(1, ended.trial_count + 1))
    jobs = lab.plane.all(Job)
    assert sorted(job.id for job in jobs) == sorted(trial.job_id for trial in lab.trials)
    assert {job.trial["number"] for job in jobs} == set(numbers)
    assert all(trial.state in ("succeeded", "stopped") for trial in lab.trials)


def test_the_best_trial_is_registered_in_the_transaction_that_ends_the_study(lab: Lab) -> None:
    lab.create(winner={"model": "digits", "aliases": ["best"]}, initial=[{"x": 0.2}, {"x": 0.99}])
    ended = lab.run()
    best = max(lab.trials, key=lambda trial: trial.result["score"])
    (version,) = lab.plane.all(ModelVersion)
    assert ended.winner == {"trial": best.number, "job": best.job_id, "version": version.id}
    assert (version.number, version.state, version.job_id) == (1, "registering", best.job_id)
    assert version.labels == {"study": "search", "trial": str(best.number)}
    assert version.wanted == {"aliases": ["best"], "user": "ann", "keeps_better": True}


def test_the_winner_is_run_once_more_where_its_spec_says_so(lab: Lab) -> None:
    lab.create(winner={"model": "digits", "arguments": ["--final"]}, initial=[{"x": 0.2}, {"x": 0.99}])
    ended = lab.run()
    (version,) = lab.plane.all(ModelVersion)
    assert version.state == "waiting"
    assert len(lab.trials) == 4  # the one more run is no trial
    for _ in range(3):
        lab.turn()
    job = lab.plane.one(Job, id=ended.winner["job"])
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
    assert ended.winner["trial"] == 1
    assert len(lab.plane.all(ModelVersion)) == 1


def test_a_study_of_which_nothing_succeeds_registers_nothing(lab: Lab) -> None:
    lab.create(winner="digits", budget={"trials": 2}, template={"command": "train", "cpu": "1", "max_restarts": 0})
    lab.script = lambda _point: Script(run_for=timedelta(seconds=1), exit_code=1)
    assert lab.run().state == "failed"
    assert lab.study.winner is None
    assert lab.plane.all(ModelVersion) == []


@pytest.mark.parametrize("lost", ["membership", "role", "account"])
def test_who_lost_his_rights_has_no_more_trials_submitted(lab: Lab, lost: str) -> None:
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


def test_who_lost_his_rights_gets_no_run_of_the_winner_when_the_study_is_stopped(lab: Lab) -> None:
    lab.create(winner={"model": "digits", "arguments": ["--final"]}, budget={"trials": 50, "parallel": 2})
    while not any(trial.state == "succeeded" for trial in lab.trials):
        lab.turn()
    with unit_of_work(lab.plane.sessions) as session:
        session.execute(delete(Membership))
        session.execute(update(Study).values(state="stopping", generation=Study.generation + 1))
    ended = lab.run()
    assert ended.state == "cancelled"
    assert "not registered: user ann, in whose name its trials run, may not submit jobs" in ended.reason
    assert ended.winner is None
    assert lab.plane.all(ModelVersion) == []
    assert {job.id for job in lab.plane.all(Job)} == {trial.job_id for trial in lab.trials}


def test_an_admin_of_the_platform_needs_no_membership(lab: Lab) -> None:
    lab.create()
    with unit_of_work(lab.plane.sessions) as session:
        session.execute(delete(Membership))
        session.execute(update(User).values(is_admin=True))
    assert lab.run().state == "succeeded"
