"""Studies in the control loop, with the fake engine: what begins, what counts, what ends early, and what a kill
leaves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session, sessionmaker
from trainmaster.studies import Algorithm
from trainmaster.wire.metrics import Report, ReportItem

from core.db import leases
from core.db.engine import unit_of_work
from core.db.tables import Attempt, Job, Study
from core.domain.errors import StaleWrite
from core.domain.ids import AttemptId
from core.reports import ingest_report
from core.wakeups import TOPIC_STUDY
from executors.fake import ProcessKilled, Script
from scheduler.control import fence
from scheduler.control.studies.decisions import METRIC_GRACE
from scheduler.control.studies.study_loop import StudyLoop
from scheduler.tuning import Proposal, ProposalRequest, propose
from scheduler.tuning.proposers import Proposers
from tests.integration.control.studies.study_lab import Lab


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
    wakeups: list[tuple[str, str]] = []
    lab.plane.notify = lambda topic, key="": wakeups.append((topic, key))
    lab.study_loop.reconcile("study-1")
    assert len(lab.trials) == 2
    lab.study_loop.reconcile("study-1")
    assert len(lab.trials) == 2
    lab.plane.settle()
    lab.report()
    wakeups.clear()
    lab.plane.advance(6)
    assert (TOPIC_STUDY, "study-1") in wakeups
    lab.study_loop.reconcile("study-1")
    assert [trial.state for trial in lab.trials] == ["succeeded", "succeeded", "running", "running"]


def test_a_study_whose_trials_all_came_to_the_same_says_so_and_keeps_it(lab: Lab) -> None:
    lab.create(budget={"trials": 5, "parallel": 1})
    lab.curve = lambda _point: [(1, 0.5)]
    ended = lab.run()
    assert (ended.state, "whether the script reads its parameters" in ended.note) == ("succeeded", True)


def test_a_trial_without_its_metric_says_where_it_was_looked_for(lab: Lab) -> None:
    lab.create(budget={"trials": 1})
    lab.curve = lambda _point: []
    ended = lab.run()
    assert ended.state == "failed"
    (trial,) = lab.trials
    assert "never reported the metric 'score'" in trial.reason
    assert "hypertune's file" in trial.reason
    assert "it was over within seconds, or no process could look inside it. Looked for it in" in trial.reason
    assert trial.reason.endswith('alone write `metric_patterns: ["score={score}"]` in the template')
    assert trial.ended_at - lab.plane.one(Job, id=trial.job_id).finished_at >= METRIC_GRACE


@pytest.mark.parametrize("who", ["all", "one of two"])
def test_no_metric_is_waited_for_where_all_replicas_have_fully_reported(lab: Lab, who: str) -> None:
    roles = {"worker": {"replicas": 1 if who == "all" else 2, "resources": {"cpu": "1"}}}
    lab.create(budget={"trials": 1}, template={"command": "train", "roles": roles})
    lab.curve = lambda _point: [(1, float("nan"))]
    lab.turn()
    attempt = lab.plane.one(Attempt, job_id=lab.trials[0].job_id)
    item = ReportItem(seq=1, at=lab.plane.engine.now, kind="progress", data={"metric_sources": {}})
    with unit_of_work(lab.plane.sessions) as session:
        report = Report(role="worker", index=0, generation=1, items=[item])
        ingest_report(session, AttemptId(attempt.id), report, now=lab.plane.engine.now)
    lab.run()
    (trial,) = lab.trials
    assert trial.reason == "its last value of the metric 'score' is not a number"
    waited = trial.ended_at - lab.plane.one(Job, id=trial.job_id).finished_at
    assert (waited < timedelta(seconds=3)) is (who == "all")
    assert (waited >= METRIC_GRACE) is (who != "all")


def test_a_trial_without_its_metric_names_its_own_patterns_and_what_came(lab: Lab) -> None:
    template = {"command": "train", "cpu": "1", "metric_patterns": ["Epoch {epoch} acc {acc}", "loss {loss}"]}
    lab.create(budget={"trials": 1}, template=template)
    lab.curve, lab.metrics = lambda _point: [(1, 0.5)], ("acc", "system/cpu")
    lab.run()
    reason = lab.trials[0].reason
    assert "metric_patterns: `Epoch {epoch} acc {acc}`, `loss {loss}`, of which none has {score}" in reason
    assert "step=3" not in reason  # the usual lines are not looked at beside them
    assert "; it reported acc. Looked for it in" in reason


def test_a_trial_with_resource_samples_only_was_observed(lab: Lab) -> None:
    template = {"command": "train", "cpu": "1", "metric_patterns": "acc {score}"}
    lab.create(budget={"trials": 1}, template=template)
    lab.curve, lab.metrics = lambda _point: [(1, 0.5)], ("system/cpu",)
    lab.run()
    assert "; it reported no metric at all. Looked for it in" in lab.trials[0].reason
    assert lab.trials[0].reason.endswith("metric_patterns: `acc {score}`")


def test_not_a_number_is_no_result(lab: Lab) -> None:
    lab.create(budget={"trials": 1}, measurement="last")
    lab.curve = lambda _point: [(1, 0.5), (2, float("nan"))]
    lab.run()
    assert lab.trials[0].reason == "its last value of the metric 'score' is not a number"


@pytest.mark.parametrize(("last", "fault"), [("nan", "not a number"), ("inf", "infinite")])
def test_a_trial_that_diverged_keeps_its_best_and_says_so(lab: Lab, last: str, fault: str) -> None:
    lab.create(budget={"trials": 1})
    lab.curve = lambda _point: [(1, 0.5), (2, float(last)), (3, float(last))]
    lab.run()
    (trial,) = lab.trials
    assert (trial.state, trial.result) == ("succeeded", {"score": 0.5})
    assert trial.reason == f"Its last value of the metric 'score' is {fault}: it diverged after step 1."


def test_an_infinite_metric_is_reported_as_such(lab: Lab) -> None:
    lab.create(budget={"trials": 1})
    lab.curve = lambda _point: [(1, float("-inf"))]
    lab.run()
    assert lab.trials[0].reason == "its last value of the metric 'score' is infinite"


def test_a_study_whose_trials_all_fail_ends_soon_with_the_most_frequent_reason(lab: Lab) -> None:
    lab.create(budget={"trials": 100, "parallel": 2}, template={"command": "train", "cpu": "1", "max_restarts": 0})
    lab.script = lambda _point: Script(run_for=timedelta(seconds=1), exit_code=1, log_tail="ValueError: no such file")
    ended = lab.run()
    assert ended.state == "failed"
    assert "trials all failed" in ended.reason
    assert "said: " in ended.reason
    assert len(lab.trials) < 10


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


def test_a_lost_wakeup_is_made_up_for_however_many_studies_there_are(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.create()
    with unit_of_work(lab.plane.sessions) as session:
        first = session.get_one(Study, "study-1")
        reported = {column.key: getattr(first, column.key) for column in Study.__table__.columns}
        session.add_all(Study(**{**reported, "id": f"study-{number}"}) for number in range(2, 8))
    monkeypatch.setattr("scheduler.control.studies.study_loop.PAGE_SIZE", 2)
    wakeups: list[tuple[str, str]] = []
    lab.plane.notify = lambda topic, key="": wakeups.append((topic, key))
    lab.study_loop.notify_due()
    assert wakeups == [(TOPIC_STUDY, f"study-{number}") for number in range(1, 8)]


def test_trials_that_fit_nowhere_are_in_the_note(lab: Lab) -> None:
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


def test_untried_initial_points_come_first_when_the_study_is_extended(lab: Lab) -> None:
    own = [{"x": 0.1}, {"x": 0.2}]
    lab.create(template=None, initial=own)
    lab.study_loop.reconcile("study-1")
    assert [one["parameters"] for one in lab.study.prefetched_points[:2]] == own
    for state in ("stopping", "running"):
        with unit_of_work(lab.plane.sessions) as session:
            session.execute(update(Study).values(state=state, generation=Study.generation + 1))
        lab.study_loop.reconcile("study-1")
    assert [one["parameters"] for one in lab.study.prefetched_points[:2]] == own
    assert len(lab.study.prefetched_points) > 2


def test_a_finite_space_ends_the_study_when_all_was_tried(lab: Lab) -> None:
    lab.create(
        parameters={"x": {"type": "discrete", "values": [0.25, 0.5, 0.75]}},
        algorithm="grid",
        budget={"trials": 100, "parallel": 2},
    )
    ended = lab.run()
    assert (ended.state, ended.reason) == ("succeeded", "Every point of the space was tried.")
    assert sorted(trial.parameters["x"] for trial in lab.trials) == [0.25, 0.5, 0.75]


def test_a_point_of_the_user_that_warm_starting_brought_is_not_tried_again(lab: Lab) -> None:
    own = [{"x": x} for x in (0.25, 0.5, 0.75)]
    lab.create(initial=own, warm_start=["old"], budget={"trials": 3, "parallel": 1})
    with unit_of_work(lab.plane.sessions) as session:
        session.execute(update(Study).values(prior_trials=[{"parameters": {"x": 0.25}, "values": [0.5]}]))
    assert lab.run().state == "succeeded"
    points = [trial.parameters for trial in lab.trials]
    assert points[:2] == own[1:]
    assert points[2] not in own


@pytest.mark.parametrize("algorithm", ["grid", "random", "auto"])
@pytest.mark.parametrize("template", [True, False])
def test_a_space_that_warm_starting_knows_whole_ends_well_and_names_the_best(
    lab: Lab, algorithm: str, *, template: bool
) -> None:
    more = {} if template else {"template": None}
    lab.create(
        parameters={"x": {"type": "discrete", "values": [0.25, 0.5]}}, algorithm=algorithm, warm_start=["old"], **more
    )
    known = [{"parameters": {"x": x}, "values": [x]} for x in (0.25, 0.5)]
    with unit_of_work(lab.plane.sessions) as session:
        session.execute(update(Study).values(prior_trials=known))
    ended = lab.run()
    assert ended.state == "succeeded"
    assert ended.reason == (
        "Nothing new to try: every point of the space was tried, by trials of the studies that it was warm-started "
        "from. "
        "The best of those has score 0.5: x=0.5."
    )
    assert lab.trials == []


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
    other = StudyLoop(replace(lab.plane.control, holder="other"))
    with unit_of_work(lab.plane.sessions) as session:
        held = leases.acquire(
            session, "study:study-1", holder="test", now=lab.plane.engine.now, ttl=timedelta(seconds=15)
        )
    other.reconcile("study-1")
    assert lab.trials == []
    lab.plane.engine.advance(timedelta(seconds=16))
    other.reconcile("study-1")
    assert len(lab.trials) == 2
    assert held is not None
    with pytest.raises(StaleWrite), fence.fenced(lab.plane.control, held):
        pass


def test_points_for_gp_are_drawn_ahead_and_used_when_a_trial_ends(lab: Lab) -> None:
    requested: list[ProposalRequest] = []

    class Slow(Proposers):
        def __call__(self, question: ProposalRequest) -> list[Proposal]:
            requested.append(question)
            return propose(replace(question, algorithm=Algorithm.RANDOM))

    lab.create(algorithm="gp", budget={"trials": 30, "parallel": 2})
    lab.study_loop = StudyLoop(lab.plane.control, Slow())
    while lab.study.trial_count < 14:
        lab.turn()
    ahead = lab.study.prefetched_points
    assert len(ahead) == 2
    assert all(len(question.finished) >= 8 for question in requested[-2:])
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
    monkeypatch.setattr("scheduler.control.studies.study_loop.has_gaussian_process", lambda: has_torch)

    class Failing(Executor):
        def submit(self, *_: Any, **__: Any) -> Any:
            raise ImportError("a part of scipy")

    proposers = Proposers(make_pool=Failing)
    lab.create(algorithm="gp", budget={"trials": 14, "parallel": 2})
    lab.study_loop = StudyLoop(lab.plane.control, proposers)
    notes = set()
    for _ in range(40):
        lab.turn()
        notes.add(lab.study.note)
        if lab.study.state == "succeeded":
            break
    assert (lab.study.state, len(lab.trials)) == ("succeeded", 14)
    (reported,) = notes - {""}
    assert "GP could not draw some" in reported


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
    """``killer(n)``: the next study_loop dies at its step n."""
    calm = lab.plane.sessions

    def arm(step: int) -> None:
        KilledSession.step, KilledSession.dies_at = 0, step
        lab.study_loop = StudyLoop(
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
            lab.study_loop.reconcile("study-1")
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
