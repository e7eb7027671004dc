"""Asking the planner over HTTP: the API writes a question, the control loop answers it, nothing is submitted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from fastapi import FastAPI
from sqlalchemy import func, select
from starlette.testclient import TestClient

from api.main import create_app
from core.bell import TOPIC_FORECAST
from core.db.bootstrap import prepare_home, read_token
from core.db.engine import SessionFactory, unit_of_work
from core.db.repositories import questions
from core.db.repositories.questions import PATIENCE, Ask
from core.db.tables import Job, Question, User
from core.domain.errors import Unavailable
from core.settings import Settings
from scheduler.control.forecasts import Forecaster

SPEC = {"name": "asked", "command": "true", "gpus": 1}


class SchedulerBell:
    """A scheduler in this process. ``lost``: so many rings are not heard."""

    def __init__(self, plane) -> None:
        self.forecaster = Forecaster(plane.control)
        self.lost = 0
        self.heard = 0

    def ring(self, topic: str, key: str = "") -> None:
        if topic == TOPIC_FORECAST:
            self.heard += 1
            if self.heard > self.lost:
                self.forecaster.answer()


@pytest.fixture
def bell(plane) -> SchedulerBell:
    return SchedulerBell(plane)


@pytest.fixture
def app(settings: Settings, sessions: SessionFactory, plane, bell: SchedulerBell) -> FastAPI:
    prepare_home(sessions, settings, plane.engine.now)
    return create_app(settings, sessions=sessions, bell=bell, clock=lambda: plane.engine.now)


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
    assert found["queue_position"] == 2
    assert found["options"] == []  # the one that is free is kept for the job before it
    more_urgent = ask(client, workers=2, priority=90)
    assert more_urgent["queue_position"] == 1
    assert [(option["field"], option["value"]) for option in more_urgent["options"]] == [("replicas", 1)]


def test_a_job_that_waits_is_told_its_own_reason_and_what_would_start_now(plane, client) -> None:
    plane.submit("first", gpus=1)
    plane.settle()
    job = plane.submit("second", workers=2, gpus=1)
    plane.settle()
    found = client.get(f"/api/v1/jobs/{job}/forecast").json()
    assert found["queue_position"] == 1
    assert found["wait_reason"]["sentence"] == client.get(f"/api/v1/jobs/{job}").json()["wait_reason"]["sentence"]
    assert [option["sentence"] for option in found["options"]] == [
        "With 1 worker instead of 2 it would start now, on node-0."
    ]
    runs = client.get("/api/v1/jobs/first/forecast")
    assert (runs.status_code, runs.json()["detail"]) == (409, "Job first does not wait for a place: it is running.")


def test_a_ring_that_is_lost_is_rung_again(client, bell) -> None:
    bell.lost = 1
    assert ask(client)["places"]
    assert bell.heard == 2


def test_mistakes_and_projects_are_checked_as_for_a_submission(client) -> None:
    wrong = client.post("/api/v1/forecasts", json={"spec": {**SPEC, "workers": "two"}})
    assert (wrong.status_code, wrong.json()["code"], wrong.json()["field"]) == (422, "invalid_spec", "workers")


def test_nobody_has_many_questions_open_and_old_ones_are_forgotten(plane, sessions) -> None:
    with unit_of_work(sessions) as session:
        now = plane.engine.now
        session.add(User(id="user-2", name="bob", is_admin=False, created_at=now))
        about = Ask("", "a", "default", "ann", 50, now, {"roles": [], "select": [], "topology": [None, False]}, None)
        session.flush()
        for number in range(4):
            questions.put(session, f"q{number}", "user-1", about, now)
            session.flush()
        with pytest.raises(Unavailable, match="ask again in a moment"):
            questions.put(session, "q4", "user-1", about, now)
        questions.put(session, "q5", "user-2", about, now)
        session.flush()
        later = now + PATIENCE + timedelta(seconds=1)
        assert questions.unanswered(session, later, 10) == []
        questions.put(session, "q6", "user-1", about, later)
        session.flush()
        questions.answer(session, {"q6": {}}, now + 2 * PATIENCE + timedelta(seconds=1))
        assert list(session.scalars(select(Question.id))) == ["q6"]
