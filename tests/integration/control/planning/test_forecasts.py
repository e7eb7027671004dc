"""Asking the planner over HTTP: the API writes a question, the control loop answers it, nothing is submitted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from fastapi import FastAPI
from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from starlette.testclient import TestClient
from trainmaster.cli.planner.queue import start_text
from trainmaster.cli.planner.whatif import starts_text
from trainmaster.cli.terminal import output
from trainmaster.wire.forecasts import ForecastView
from trainmaster.wire.scheduling import QueuePage

from api.app.factory import create_app
from core.db.bootstrap import prepare_home, read_token
from core.db.engine import SessionFactory, unit_of_work
from core.db.repositories import forecast_records, questions, simulations
from core.db.repositories.forecast_records import RecordedWait
from core.db.repositories.questions import PATIENCE, ForecastQuestion, QuestionKind
from core.db.tables import Attempt, Event, ForecastRecord, Job, Node, Project, Question, StartForecastRow, User
from core.domain.errors import Unavailable
from core.domain.ids import JobId
from core.domain.sharing.recorded_forecasts import RecordedForecast
from core.settings import Settings
from core.wakeups import TOPIC_FORECAST
from executors.fake import Script
from scheduler.control.maintenance.budgets import check_budgets
from scheduler.control.maintenance.gc import gc_forecasts
from scheduler.control.planning.snapshot import SnapshotCache, load_snapshot
from scheduler.control.planning.start_forecasts import StartForecastWriter
from scheduler.control.questions.answers import QuestionAnswerer, explanation
from scheduler.planning import Start, plan
from scheduler.planning.forecast.start_times import QueueForecast, forecast_starts
from scheduler.planning.planner import PlanningPass

SPEC = {"name": "asked", "command": "true", "gpus": 1}


class SchedulerWakeup:
    """A scheduler in this process. ``lost``: so many rings are not heard."""

    def __init__(self, plane) -> None:
        self.question_answerer = QuestionAnswerer(plane.control)
        self.lost = 0
        self.heard = 0

    def notify(self, topic: str, key: str = "") -> None:
        if topic == TOPIC_FORECAST:
            self.heard += 1
            if self.heard > self.lost:
                self.question_answerer.answer()


@pytest.fixture
def wakeup(plane) -> SchedulerWakeup:
    return SchedulerWakeup(plane)


@pytest.fixture
def app(settings: Settings, sessions: SessionFactory, plane, wakeup: SchedulerWakeup) -> FastAPI:
    prepare_home(sessions, settings, plane.engine.now)
    return create_app(settings, sessions=sessions, wakeup=wakeup, clock=lambda: plane.engine.now)


@pytest.fixture
def client(app: FastAPI, settings: Settings) -> Iterator[TestClient]:
    token = read_token(settings)
    with TestClient(app, headers={"Authorization": f"Bearer {token}"}) as client:
        yield client


def ask(client: TestClient, **spec) -> dict:
    answer = client.post("/api/v1/forecasts", json={"spec": {**SPEC, **spec}})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_planner_tells_where_it_would_run_and_nothing_is_submitted(client, sessions) -> None:
    found = ask(client, workers=2)
    assert found["places"] == [{"role": "worker", "node": "node-0", "replicas": 2, "gpu_model": "a100"}]
    assert (found["wait_reason"], found["queue_position"], found["options"]) == (None, 1, [])
    with unit_of_work(sessions) as session:
        assert session.execute(select(func.count()).select_from(Job)).scalar_one() == 0
        assert session.execute(select(func.count()).select_from(Question)).scalar_one() == 0


def test_what_runs_and_waits_is_in_the_planner_s_way(plane, client) -> None:
    plane.submit("first", gpus=1)
    plane.settle()
    plane.submit("second", gpus=2)
    found = ask(client, workers=2)
    assert found["places"] == []
    assert found["wait_reason"]["code"] == "no_room"
    assert found["queue_position"] == 1  # who asks has nothing yet, and so the smaller share
    assert [(option["field"], option["value"]) for option in found["options"]] == [("replicas", 1), ("gpus", 0.5)]
    less_urgent = ask(client, workers=2, priority=10)
    assert less_urgent["queue_position"] == 2
    assert less_urgent["options"] == []  # the one that is free is kept for the job before it


def test_a_waiting_job_has_its_own_reason_and_alternatives(plane, client) -> None:
    plane.submit("first", gpus=1)
    plane.settle()
    job = plane.submit("second", workers=2, gpus=1)
    plane.settle()
    found = client.get(f"/api/v1/jobs/{job}/forecast").json()
    assert found["queue_position"] == 1
    assert found["wait_reason"]["sentence"] == client.get(f"/api/v1/jobs/{job}").json()["wait_reason"]["sentence"]
    assert [option["sentence"] for option in found["options"]] == [
        "With 1 worker instead of 2 it would start now, on node-0.",
        "With half a GPU for each worker instead of a whole one it would start now, on node-0.",
    ]
    runs = client.get("/api/v1/jobs/first/forecast")
    assert (runs.status_code, runs.json()["detail"]) == (409, "Job first is not queued: it is running.")


def test_the_forecast_tells_the_cost_by_what_is_known(plane, client) -> None:
    assert ask(client)["cost"] is None  # no prices
    for resource, per_hour in (("gpu", "2.5"), ("cpu", "0.1")):
        body = {"resource": resource, "per_hour": per_hour}
        assert client.post("/api/v1/prices", json=body).status_code == 201
    cost = ask(client, cpu=2, workers=2)["cost"]
    assert (cost["basis"], cost["per_hour"], cost["expected"], cost["at_most"]) == ("unknown", "5.40", None, None)
    assert cost["sentence"].startswith("5.40 USD per hour; its run time is not known yet")
    cost = ask(client, cpu=2, max_run_time="90m")["cost"]
    assert (cost["basis"], cost["at_most"]) == ("limit", "4.05")
    assert cost["sentence"].startswith("At most 4.05 USD by its max_run_time of 1.5 h, at 2.70 USD per hour")
    plane.engine.script("worker", Script(run_for=timedelta(hours=1)))
    for number in range(3):
        plane.submit(f"asked-{number}", gpus=1)
        plane.settle()
        plane.advance(3601)
    learnt = ask(client, cpu=2, max_run_time="4h", name="asked-4")["cost"]
    assert learnt["basis"] == "learnt"
    assert float(learnt["expected"]) == pytest.approx(2.70, rel=0.3)
    assert learnt["at_most"] == "10.80"
    assert "as learnt from 3 finished jobs" in learnt["sentence"]
    plane.engine.script("worker", Script(run_for=None))
    plane.submit("all", gpus=2)
    plane.settle()
    waits = ask(client, cpu=2, name="other")
    assert waits["wait_reason"]["code"] == "no_room"
    assert "2.70 USD per hour at most" in waits["cost"]["sentence"]


def test_a_project_that_has_spent_its_budget_comes_behind_the_others(plane, client, sessions) -> None:
    with unit_of_work(sessions) as session:
        session.add(Project(id="project-2", name="other", created_at=plane.engine.now, quota={}))
    plane.engine.script("worker", Script(run_for=None))
    running = plane.submit("first", gpus=2)
    plane.settle()
    plane.submit("rich", gpus=2, priority=90)
    plane.engine.advance(timedelta(seconds=1))
    modest = plane.submit("modest", gpus=2, priority=10)
    with unit_of_work(sessions) as session:
        session.execute(update(Job).where(Job.id == modest).values(project_id="project-2"))
    body = {"resource": "gpu", "per_hour": "3600", "effective_from": plane.engine.now.isoformat()}
    assert client.post("/api/v1/prices", json=body).status_code == 201
    budget = {"per_month": "5", "action": "lower_priority"}
    assert client.put("/api/v1/projects/default/budget", json=budget).status_code == 200
    assert (check_budgets(plane.control), positions(plane, client)) == (0, ["rich", "modest"])
    plane.advance(5)  # 2 GPUs at 1 USD a second
    assert (check_budgets(plane.control), check_budgets(plane.control)) == (1, 0)
    plane.settle()
    assert positions(plane, client) == ["modest", "rich"]
    explained = client.get("/api/v1/jobs/rich/explanation").json()["order"]
    assert explained.startswith(
        "1 job comes before it: 1 is of projects within their budgets. "
        "Its project default has spent this month's budget, so its jobs come behind those of all others; "
    )
    assert ask(client, gpus=2, priority=99)["queue_position"] == 2  # behind the modest one, all the same
    assert plane.state(running) == "running"
    assert client.put("/api/v1/projects/default/budget", json={**budget, "per_month": "5000"}).status_code == 200
    plane.settle()
    assert positions(plane, client) == ["rich", "modest"]
    with unit_of_work(sessions) as session:
        kinds = select(Event.kind).where(Event.project_id == "project-1", Event.kind.startswith("budget."))
        assert list(session.scalars(kinds.order_by(Event.id))) == ["budget.set", "budget.spent", "budget.set"]


def positions(plane, client: TestClient) -> list[str]:
    StartForecastWriter(plane.control).write()
    return [item["name"] for item in client.get("/api/v1/queue").json()["items"]]


def test_a_lost_wakeup_is_sent_again(client, wakeup) -> None:
    wakeup.lost = 1
    assert ask(client)["places"]
    assert wakeup.heard == 2


def test_mistakes_and_projects_are_checked_as_for_a_submission(client) -> None:
    wrong = client.post("/api/v1/forecasts", json={"spec": {**SPEC, "workers": "two"}})
    assert (wrong.status_code, wrong.json()["code"], wrong.json()["field"]) == (422, "invalid_spec", "workers")


def test_open_questions_are_limited_and_old_ones_are_deleted(plane, sessions) -> None:
    with unit_of_work(sessions) as session:
        now = plane.engine.now
        session.add(User(id="user-2", name="bob", is_admin=False, created_at=now))
        gang = {"roles": [], "select": [], "topology": [None, False]}
        about = ForecastQuestion("", "a", "default", "ann", 50, now, gang, None).to_json()
        session.flush()
        for number in range(4):
            questions.put(session, f"q{number}", "user-1", about, now)
            session.flush()
        with pytest.raises(Unavailable, match="ask again in a moment"):
            questions.put(session, "q4", "user-1", about, now)
        questions.put(session, "q5", "user-2", about, now)
        questions.put(session, "s1", "user-1", {}, now, QuestionKind.SIMULATION)
        session.flush()
        assert [one.id for one in questions.unanswered(session, now, 10)] == ["q0", "q1", "q2", "q3", "q5"]
        later = now + PATIENCE + timedelta(seconds=1)
        assert questions.unanswered(session, later, 10) == []
        assert [one.id for one in questions.unanswered(session, later, 10, [QuestionKind.SIMULATION])] == ["s1"]
        session.flush()
        claim = simulations.claim_next(session, "me", later)
        assert claim is not None
        assert claim.id == "s1"
        assert simulations.claim_next(session, "you", later) is None
        questions.put(session, "q6", "user-1", about, later)
        session.flush()
        questions.answer(session, {"q6": {}}, now + 2 * PATIENCE + timedelta(seconds=1))
        assert sorted(session.scalars(select(Question.id))) == ["q6", "s1"]


def test_a_waiting_job_has_a_start_forecast_also_with_a_smaller_request(plane, client) -> None:
    plane.submit("first", gpus=2, max_run_time="1h")
    plane.settle()
    plane.submit("second", workers=2, gpus=2, max_run_time="10m")
    plane.settle()
    found = client.get("/api/v1/jobs/second/forecast").json()
    assert found["wait_reason"]["code"] in ("no_room", "too_large")
    third = plane.submit("third", gpus=2, max_run_time="10m")
    plane.settle()
    waits = client.get(f"/api/v1/jobs/{third}/forecast").json()
    assert waits["start"]["code"] == "expected"
    assert waits["start"]["sentence"].startswith("It starts probably at about ")
    less = client.post("/api/v1/forecasts", json={"job": "third", "changes": {"gpus": 1}}).json()
    assert less["start"]["likely_at"] <= waits["start"]["likely_at"]
    more = client.post(
        "/api/v1/forecasts", json={"job": "third", "cluster": {"more_nodes": 1, "like": "node-0"}}
    ).json()
    assert more["places"][0]["node"] in ("node-0", "node-0-more-1")
    for body, field in (
        ({"cluster": {"more_nodes": 1, "like": "nowhere"}}, "cluster.like"),
        ({"cluster": {"more_nodes": 1}}, "cluster.like"),
        ({"cluster": {"without": ["nowhere"]}}, "cluster.without"),
        ({"spec": SPEC}, "job"),
        ({"changes": {"gpus": "many"}}, "gpus"),
    ):
        wrong = client.post("/api/v1/forecasts", json={"job": "third", **body})
        assert (wrong.status_code, wrong.json()["field"]) == (422, field), wrong.json()


def test_jobs_of_a_batch_are_expected_to_last_as_long_as_those_of_it_that_run(plane, sessions) -> None:
    for number in range(6):
        job_id = plane.submit(f"try-{number}", gpus=1)
        with unit_of_work(sessions) as session:
            job = session.get_one(Job, job_id)
            job.state, job.run_s, job.finished_at = "succeeded", 4.0, plane.engine.now
    for number in range(7):
        plane.submit(f"sweep-{number}", gpus=1)
    plane.settle()
    plane.engine.now += timedelta(minutes=10)
    with unit_of_work(sessions) as session:
        loaded = load_snapshot(session, SnapshotCache(), plane.engine.now)
    assert len(loaded.snapshot.running) == 2
    found = forecast_starts(loaded.snapshot)
    waiting = [start for start in found.starts if start.likely is not None]
    assert len(waiting) == 5
    first, *_, last = sorted(start.likely for start in waiting if start.likely is not None)
    assert last - first > timedelta(minutes=10)  # two at a time, not all five in a minute


def test_queue_job_page_and_command_line_show_the_same_expected_start(plane, client) -> None:
    plane.submit("first", gpus=2, max_run_time="1h")
    plane.settle()
    for name in ("second", "third", "fourth"):
        plane.submit(name, gpus=2, max_run_time="7m")
    plane.settle()
    StartForecastWriter(plane.control).write()
    plane.engine.now += timedelta(seconds=40)  # an answer of its own would be later
    page = QueuePage.model_validate(client.get("/api/v1/queue").json())
    assert len(page.items) == 3
    for job in page.items:
        assert job.start is not None
        assert job.start.likely_at is not None
        assert (job.start.likely_at.second, job.start.likely_at.microsecond) == (0, 0)
        of_job = ForecastView.model_validate(client.get(f"/api/v1/jobs/{job.name}/forecast").json())
        asked = ForecastView.model_validate(client.post("/api/v1/forecasts", json={"job": job.name}).json())
        assert of_job.start == asked.start == job.start
        assert starts_text(of_job) == start_text(job.start, output.now())
        assert f"about {job.start.likely_at:%H:%M} UTC" in job.start.sentence
    changed = client.post("/api/v1/forecasts", json={"job": "fourth", "changes": {"gpus": 1}}).json()
    assert changed["start"]["likely_at"] != page.items[-1].start.likely_at.isoformat()


def test_expected_starts_are_compared_with_the_real_ones_and_the_queue_shows_how_good_they_were(
    plane, client, sessions
) -> None:
    plane.submit("first", gpus=2, max_run_time="1h")
    plane.settle()
    second = plane.submit("second", gpus=2, max_run_time="10m")
    plane.engine.now += timedelta(seconds=1)
    dropped = plane.submit("dropped", gpus=2)
    plane.settle()
    writer = StartForecastWriter(plane.control)
    writer.write()
    assert client.get("/api/v1/queue").json()["accuracy"] is None
    begin = plane.engine.now
    for _ in range(6):
        plane.engine.now += timedelta(minutes=5)
        writer.write()
    steps = [row.step for row in plane.all(ForecastRecord, job_id=second)]
    assert steps == [0, 3, 4, 5]  # after 5, 10 and 20 minutes; not at 15, 25 and 30
    assert {row.attempt for row in plane.all(ForecastRecord)} == {1}
    plane.want("job-first", "cancel")
    plane.want(dropped, "cancel")
    plane.settle()
    plane.settle()
    assert plane.state(second) == "running"
    StartForecastWriter(plane.control).write()  # of another process
    rows = plane.all(ForecastRecord)
    assert [(row.job_id, (row.made_at - begin).total_seconds()) for row in rows] == [(second, 0), (second, 600)]
    assert {row.started_at for row in rows} == {plane.one(Attempt, job_id=second).created_at}
    found = client.get("/api/v1/queue").json()["accuracy"]
    assert (found["forecasts"], found["target"]) == (2, 0.9)
    inside = sum(row.early <= row.started_at <= row.late for row in rows)
    assert found["inside"] == inside
    assert f"Of the last 2 expected starts, {50 * inside} % fell into their interval" in found["sentence"]
    with unit_of_work(sessions) as session:
        forecast_records.prune(session)
    assert len(plane.all(ForecastRecord)) == 2


def test_only_the_newest_comparisons_are_stored(plane, sessions, monkeypatch) -> None:
    monkeypatch.setattr(forecast_records, "STORED", 3)
    now = plane.engine.now
    for number in range(6):
        job_id = plane.submit(f"j{number}")
        made = RecordedForecast(0, now, 1.0, 2.0, None, now, now, now, now + timedelta(minutes=number))
        with unit_of_work(sessions) as session:
            forecast_records.close(session, RecordedWait(job_id, 1, now, is_over=True), [made])
    gc_forecasts(plane.control)
    assert [row.job_id for row in plane.all(ForecastRecord)] == ["job-j3", "job-j4", "job-j5"]


def test_a_promise_that_is_not_met_is_one_event_with_its_cause(plane, sessions) -> None:
    plane.submit("first", gpus=2, max_run_time="10m")
    plane.settle()
    waits = plane.submit("waits", gpus=2, max_run_time="10m")
    plane.settle()
    writer = StartForecastWriter(plane.control)

    def forecast_again(seconds: float) -> list[Event]:
        plane.engine.now += timedelta(seconds=seconds)
        writer.write()
        return plane.all(Event, job_id=waits, kind="job.delayed")

    assert forecast_again(0) == []
    assert forecast_again(70) == []  # nothing has changed
    plane.submit("urgent", gpus=2, max_run_time="10h", priority=90)
    (event,) = forecast_again(10)
    assert event.data["cause"] == "priority"
    assert event.reason.startswith("Expected start moved from ")
    assert event.reason.endswith(", because job urgent of priority 90 came before it in the queue.")
    for _ in range(5):
        assert len(forecast_again(61)) == 1
    with unit_of_work(sessions) as session:
        session.execute(update(Node).values(is_cordoned=True))
    _, event = forecast_again(400)
    assert event.data["cause"] == "node"
    assert event.reason.endswith("to a time that is not known, because node node-0 is cordoned.")


def test_a_question_that_makes_the_planner_fail_is_answered_once_with_an_error(client, wakeup, monkeypatch) -> None:
    def fail(*_arguments, **_more):
        raise ZeroDivisionError

    monkeypatch.setattr("scheduler.control.questions.answers.forecast", fail)
    failed = client.post("/api/v1/forecasts", json={"spec": SPEC})
    assert (failed.status_code, failed.json()["code"]) == (500, "internal")
    assert "could not answer this" in failed.json()["detail"]
    assert wakeup.heard == 1


@pytest.fixture
def planner_fails(monkeypatch):
    """The planner, which fails wherever one of these jobs waits."""
    broken: set[str] = set()
    whole = PlanningPass.__init__

    def begin(self, snapshot, **more):
        if any(job.name in broken for job in snapshot.queued):
            raise OverflowError("a bug of the planner")
        whole(self, snapshot, **more)

    monkeypatch.setattr(PlanningPass, "__init__", begin)
    return broken


def test_a_poison_job_breaks_no_forecast_explanation_or_expected_start(plane, client, sessions, planner_fails) -> None:
    planner_fails.add("bad")
    plane.submit("first", gpus=2, max_run_time="1h")
    plane.submit("bad")
    plane.settle()
    job = plane.submit("second", gpus=2, max_run_time="10m")
    plane.settle()
    StartForecastWriter(plane.control).write()
    with unit_of_work(sessions) as session:
        assert [(row.job_id, row.code) for row in session.scalars(select(StartForecastRow))] == [(job, "expected")]
    forecast = client.get("/api/v1/jobs/second/forecast").json()
    assert forecast["start"]["code"] == "expected"
    now, then = {}, {"at": plane.engine.now.isoformat()}
    for at in (now, then):
        waits = client.get("/api/v1/jobs/second/explanation", params=at).json()
        assert (waits["verdict"], waits["queue_position"], waits["waiting"]) == ("waits", 1, 1), waits
        broken = client.get("/api/v1/jobs/bad/explanation", params=at).json()
        assert broken["verdict"] == "waits"
        assert "the planner fails with this job (OverflowError)" in broken["sentence"]
    planner_fails.add("second")  # of one that was recorded when another version of the planner had no such bug
    assert client.get("/api/v1/jobs/first/explanation", params=then).json()["verdict"] == "runs"


def test_expected_starts_that_cannot_be_worked_out_are_tried_a_minute_later(plane, monkeypatch) -> None:
    plane.submit("first", gpus=2)
    looks = []

    def fail(*arguments):
        looks.append(arguments)
        raise ZeroDivisionError

    monkeypatch.setattr("scheduler.control.planning.start_forecasts.forecast_starts", fail)
    writer = StartForecastWriter(plane.control)
    for seconds, times in ((0, 1), (10, 1), (55, 2)):
        plane.engine.now += timedelta(seconds=seconds)
        with suppress(ZeroDivisionError):
            writer.write()
        assert len(looks) == times


def test_why_a_job_waits_is_explained_by_the_planner_itself(plane, client) -> None:
    plane.submit("first", gpus=2)
    plane.settle()
    plane.submit("second", gpus=2)
    plane.settle()
    waits = client.get("/api/v1/jobs/second/explanation").json()
    assert (waits["verdict"], waits["queue_position"], waits["is_same"]) == ("waits", 1, True)
    assert waits["sentence"] == client.get("/api/v1/jobs/second").json()["wait_reason"]["sentence"]
    assert (waits["waiting"], waits["running"]) == (1, 1)
    runs = client.get("/api/v1/jobs/first/explanation").json()
    assert (runs["verdict"], runs["sentence"]) == ("runs", "Runs on node-0.")
    never = client.get("/api/v1/jobs/second/explanation", params={"at": "2020-01-01T00:00:00Z"})
    assert (never.status_code, never.json()["code"]) == (404, "not_found")
    assert "No plan of that time is kept; the oldest is of 20" in never.json()["detail"]
    ahead = client.get("/api/v1/jobs/second/explanation", params={"at": "2130-01-01T00:00:00Z"})
    assert (ahead.status_code, ahead.json()["field"]) == (422, "at")
    assert "is in the future" in ahead.json()["detail"]
    vague = client.get("/api/v1/jobs/second/explanation", params={"at": "2020-01-01T00:00:00"})
    assert (vague.status_code, vague.json()["field"]) == (422, "at")


def test_expected_starts_are_persisted_for_readers_of_the_queue(plane, sessions) -> None:
    plane.submit("first", gpus=2, max_run_time="1h")
    plane.settle()
    job = plane.submit("second", gpus=2)
    endless = plane.submit("third", gpus=2)
    plane.settle()
    writer = StartForecastWriter(plane.control)
    writer.write()
    with unit_of_work(sessions) as session:
        rows = {row.job_id: row for row in session.scalars(select(StartForecastRow))}
        assert (rows[job].position, rows[job].code, rows[job].nodes) == (1, "expected", ["node-0"])
        assert rows[job].likely is not None
        assert (rows[endless].position, rows[endless].code, rows[endless].likely) == (2, "not_known", None)
        assert "states no max_run_time" in rows[endless].sentence


def test_expected_starts_are_not_worked_out_again_at_once_when_writing_them_fails(plane, sessions, monkeypatch) -> None:
    plane.submit("first", gpus=2)
    plane.settle()
    job = plane.submit("second", gpus=2)
    plane.settle()
    writer, looks, writes = StartForecastWriter(plane.control), [], []

    def look(snapshot, made):
        looks.append(snapshot)
        return forecast_starts(snapshot, made)

    def collide(*_arguments):
        writes.append(1)
        raise IntegrityError("insert", {}, Exception("duplicate key"))

    monkeypatch.setattr("scheduler.control.planning.start_forecasts.forecast_starts", look)
    with monkeypatch.context() as others:
        others.setattr("scheduler.control.planning.start_forecasts.write_start_forecasts", collide)
        writer.write()
        plane.engine.now += timedelta(seconds=20)
        writer.write()
    assert (len(looks), len(writes)) == (1, 3)
    found = forecast_starts(looks[0]).starts
    monkeypatch.setattr(
        "scheduler.control.planning.start_forecasts.forecast_starts",
        lambda *_: QueueForecast((*found, replace(found[0], job_id=JobId("removed")))),
    )
    plane.engine.now += timedelta(minutes=2)
    writer.write()
    with unit_of_work(sessions) as session:
        assert list(session.scalars(select(StartForecastRow.job_id))) == [job]


def test_more_shapes_than_the_cache_holds_are_planned_all_the_same(plane, monkeypatch) -> None:
    monkeypatch.setattr("scheduler.control.planning.snapshot.GANG_CACHE_SIZE", 2)
    plane.submit("runs", gpus=1, cpu="1")
    plane.settle()
    for number in range(4):
        plane.submit(f"waits-{number}", gpus=2, cpu=str(number + 1))
    with unit_of_work(plane.sessions, read_only=True) as session:
        seen = load_snapshot(session, SnapshotCache(), plane.engine.now, can_grow=True).snapshot
    assert (len(seen.running), len(seen.queued)) == (1, 4)
    assert seen.running[0].gang.gpu_count == 1


def test_the_logged_plan_is_shown_only_if_it_differs(plane) -> None:
    plane.submit("first", gpus=2)
    plane.settle()
    job = plane.submit("second", gpus=2)
    plane.settle()
    with unit_of_work(plane.sessions, read_only=True) as session:
        seen = load_snapshot(session, SnapshotCache(), plane.engine.now).snapshot
    made = plan(seen)
    reason = made.waits[job]
    other_words = replace(made, waits={**made.waits, job: replace(reason, sentence="has to wait", numbers={})})
    starts = replace(made, waits={}, starts=(Start(job, ()),))
    reported = [
        explanation(seen.now, seen, made, job, "second", logged_plan=remaining)["then"]
        for remaining in (made, other_words, starts)
    ]
    assert reported == ["", "", "is started on "]
