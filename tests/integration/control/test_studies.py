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
from trainmaster.wire.runtime import Report, ReportItem

from core.bell import TOPIC_STUDY
from core.db import leases
from core.db.engine import unit_of_work
from core.db.repositories.metrics import StreamKey, add_metrics
from core.db.tables import Attempt, Event, Job, Lease, Membership, ModelVersion, Replica, Study, User
from core.domain.errors import StaleWrite
from core.domain.ids import AttemptId
from core.domain.metrics.points import Points
from core.domain.studies.stopping import judge_traces
from core.registry.lineage import lineage_of
from core.reports.taking import take_report
from executors.fake import ProcessKilled, Script
from scheduler.control import fence
from scheduler.control.studies.facts import load_study
from scheduler.control.studies.keeper import StudyKeeper
from scheduler.control.studies.round import METRIC_GRACE
from scheduler.control.write import AttemptWriter
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
    assert "it was over within seconds, or nobody could look inside it. Looked for it in" in trial.reason
    assert trial.reason.endswith('alone write `metric_patterns: ["score={score}"]` in the template')
    assert trial.ended_at - lab.plane.one(Job, id=trial.job_id).finished_at >= METRIC_GRACE


@pytest.mark.parametrize("who", ["all", "one of two"])
def test_nobody_waits_for_a_metric_where_all_replicas_have_told_what_came(lab: Lab, who: str) -> None:
    roles = {"worker": {"replicas": 1 if who == "all" else 2, "resources": {"cpu": "1"}}}
    lab.create(budget={"trials": 1}, template={"command": "train", "roles": roles})
    lab.curve = lambda _point: [(1, float("nan"))]
    lab.turn()
    attempt = lab.plane.one(Attempt, job_id=lab.trials[0].job_id)
    item = ReportItem(seq=1, at=lab.plane.engine.now, kind="progress", data={"roads": {}})
    with unit_of_work(lab.plane.sessions) as session:
        report = Report(role="worker", index=0, generation=1, items=[item])
        take_report(session, AttemptId(attempt.id), report, now=lab.plane.engine.now)
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


def test_a_trial_that_told_nothing_but_its_resources_was_looked_at(lab: Lab) -> None:
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

    def judge(*given: Any) -> Any:
        monkeypatch.setattr("scheduler.control.studies.round.judge_traces", judge_traces)
        finish()
        return judge_traces(*given)

    if moment == "before the round":
        finish()
    else:
        monkeypatch.setattr("scheduler.control.studies.round.judge_traces", judge)
    lab.keeper.keep("study-1")
    bad = lab.plane.one(Job, id=lab.trials[3].job_id)
    assert (lab.plane.one(Replica, job_id=bad.id).state, bad.state, bad.wanted) == ("succeeded", "running", "run")
    lab.restart()
    lab.plane.engine.advance(lab.plane.control.lease_ttl * 2)
    lab.turn()
    lab.turn()
    assert [(t.state, t.stop, t.result) for t in lab.trials][3] == ("succeeded", None, {"score": 0.1})


@pytest.mark.parametrize("other", ["restarted", "second"])
def test_who_was_let_pass_a_rung_is_not_asked_there_again_by_another_process(lab: Lab, other: str) -> None:
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
    sent: list[str] = []
    with lab.statements(sent):
        for _ in range(3):
            lab.turn()  # it is alone at this rung
    for number, value in enumerate(values[1:], start=2):
        lab.tell(jobs[number], (1, value))
    if other == "restarted":
        lab.restart()
    else:
        lab.keeper = StudyKeeper(replace(lab.plane.control, holder="second"))
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

    monkeypatch.setattr("scheduler.control.studies.keeper.load_study", load)
    lab.keeper.keep("study-1")
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
    lab.plane.ring = lambda topic, key="": heard.append((topic, key))

    def pass_by(seconds: float) -> None:
        """Nobody looks at the study but who heard its bell."""
        lab.plane.advance(seconds)
        while (TOPIC_STUDY, "study-1") in heard:
            heard.clear()
            lab.keeper.keep("study-1")
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


def test_a_point_of_the_user_that_warm_starting_brought_is_not_tried_again(lab: Lab) -> None:
    own = [{"x": x} for x in (0.25, 0.5, 0.75)]
    lab.create(initial=own, warm_start=["old"], budget={"trials": 3, "parallel": 1})
    with unit_of_work(lab.plane.sessions) as session:
        session.execute(update(Study).values(known=[{"parameters": {"x": 0.25}, "values": [0.5]}]))
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
        session.execute(update(Study).values(known=known))
    ended = lab.run()
    assert ended.state == "succeeded"
    assert ended.reason == (
        "Nothing new to try: every point of the space was tried, by trials of the studies that it was warm-started from. "
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
