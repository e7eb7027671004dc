"""Studies over REST: created whole or refused with every mistake, moved as their state allows, asked and told."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient

from core.bell import TOPIC_STUDY, NullBell
from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Event, Study, Trial
from executors.fake import FakeEngine, FakeExecutor
from scheduler.control.context import Control
from scheduler.control.studies.keeper import StudyKeeper

SPEC: dict[str, Any] = {
    "name": "search",
    "template": {"command": "train"},
    "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
    "metric": "score",
    "goal": "maximize",
    "algorithm": "random",
    "budget": {"trials": 4, "parallel": 2},
}
OWN = {key: item for key, item in SPEC.items() if key != "template"}
URL = "/api/v1/studies"


@pytest.fixture
def keeper(sessions: SessionFactory, clock: Any) -> StudyKeeper:
    executor = FakeExecutor(FakeEngine())
    return StudyKeeper(Control(sessions, executor, NullBell(), clock, "test", b"k" * 32))


def create(client: TestClient, spec: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(URL, json={"spec": spec})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def test_a_study_is_created_and_the_scheduler_rung_for(client: TestClient, bell: Any) -> None:
    made = create(client, SPEC)
    assert (made["state"], made["trials"], made["spec"]["template"]["name"]) == ("running", {}, "search")
    assert bell.rings == [(TOPIC_STUDY, made["id"])]
    assert client.get(f"{URL}/search").json() == client.get(f"{URL}/{made['id']}").json()
    assert [one["name"] for one in client.get(URL).json()["items"]] == ["search"]


def test_a_dry_run_creates_nothing(client: TestClient) -> None:
    answer = client.post(URL, json={"spec": SPEC, "dry_run": True})
    assert answer.status_code == 200
    assert answer.json()["budget"]["trials"] == 4
    assert client.get(URL).json()["items"] == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"parameters": {"x": {"type": "float", "min": 1, "max": 0}}}, "parameters.x"),
        ({"template": {"command": "train", "image": "python:3"}}, "template.image"),
        ({"template": {"command": "train", "input": "nowhere/x"}}, "template.input"),
        ({"template": {"command": "train", "secrets": ["NOBODY_SET_THIS"]}}, "template.secrets.0"),
        ({"template": {"command": "train", "code": "sha256:" + "0" * 64}}, "template.code"),
        ({"warm_start": ["nobody"]}, "warm_start[0]"),
    ],
)
def test_what_cannot_run_here_is_refused_by_its_path(client: TestClient, changes: dict[str, Any], path: str) -> None:
    answer = client.post(URL, json={"spec": {**SPEC, **changes}})
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid_spec"
    assert [one["path"] for one in answer.json()["errors"]] == [path]


def test_moves_follow_the_table_and_say_why_not(client: TestClient, sessions: SessionFactory) -> None:
    create(client, SPEC)
    assert client.post(f"{URL}/search/pause").json()["state"] == "paused"
    refused = client.post(f"{URL}/search/pause")
    assert (refused.status_code, refused.json()["code"]) == (409, "illegal_transition")
    assert client.post(f"{URL}/search/resume", json={"reason": "go"}).json()["state"] == "running"
    assert client.post(f"{URL}/search/stop").json()["state"] == "stopping"
    assert client.post(f"{URL}/search/stop").json()["state"] == "stopping"
    assert client.delete(f"{URL}/search").status_code == 409
    with unit_of_work(sessions) as session:
        kinds = list(session.scalars(select(Event.kind).where(Event.kind.startswith("study."))))
    assert kinds == ["study.created", "study.pause_requested", "study.resume_requested", "study.stop_requested"]


def test_an_ended_study_is_extended_and_goes_on(client: TestClient, sessions: SessionFactory) -> None:
    create(client, SPEC)
    with unit_of_work(sessions) as session:
        session.execute(update(Study).values(state="succeeded", reason="All 4 trials are done."))
    changed = client.post(f"{URL}/search/extend", json={"trials": 6, "parallel": 3}).json()
    assert (changed["state"], changed["budget_trials"], changed["parallel"], changed["reason"]) == (
        "running",
        10,
        3,
        "",
    )
    assert client.post(f"{URL}/search/extend", json={"gpu_hours": 2}).status_code == 422
    assert client.post(f"{URL}/search/extend", json={}).status_code == 422
    assert client.post(f"{URL}/search/extend", json={"trials": 9_999}).status_code == 422


def test_points_are_asked_for_and_told(client: TestClient, keeper: StudyKeeper, sessions: SessionFactory) -> None:
    study = create(client, OWN)["id"]
    keeper.keep(study)
    asked = client.post(f"{URL}/{study}/suggestions", json={"count": 5}).json()
    assert [trial["number"] for trial in asked["trials"]] == [1, 2]
    full = client.post(f"{URL}/{study}/suggestions").json()
    assert full["trials"] == []
    assert "As many trials" in full["reason"]
    done = client.post(f"{URL}/{study}/trials/1/complete", json={"result": {"score": 0.5}})
    assert (done.status_code, done.json()["state"]) == (200, "succeeded")
    assert client.post(f"{URL}/{study}/trials/1/complete", json={"result": {"score": 1}}).status_code == 409
    assert client.post(f"{URL}/{study}/trials/2/complete", json={"result": {"loss": 1}}).status_code == 422
    assert client.post(f"{URL}/{study}/trials/9/complete", json={}).status_code == 404
    failed = client.post(f"{URL}/{study}/trials/2/complete", json={"reason": "it exploded"}).json()
    assert (failed["state"], failed["reason"]) == ("failed", "it exploded")
    for number in (3, 4):
        keeper.keep(study)
        client.post(f"{URL}/{study}/suggestions").raise_for_status()
        client.post(f"{URL}/{study}/trials/{number}/complete", json={"result": {"score": number}}).raise_for_status()
    keeper.keep(study)
    ended = client.get(f"{URL}/{study}").json()
    assert (ended["state"], ended["best"]["number"], ended["best_so_far"]) == (
        "succeeded",
        4,
        [[1, 0.5], [3, 3], [4, 4]],
    )
    with unit_of_work(sessions) as session:
        points = list(session.scalars(select(Trial.parameters)))
    assert len({point["x"] for point in points}) == 4


def test_a_study_with_a_template_is_not_asked(client: TestClient) -> None:
    create(client, SPEC)
    assert client.post(f"{URL}/search/suggestions").status_code == 409


def test_the_front_of_several_metrics_and_a_start_from_another_study(
    client: TestClient, keeper: StudyKeeper, clock: Any
) -> None:
    spec = {key: item for key, item in OWN.items() if key not in ("metric", "goal")}
    spec |= {"metrics": [{"name": "loss", "goal": "minimize"}, {"name": "speed", "goal": "maximize"}]}
    study = create(client, spec)["id"]
    for number, (loss, speed) in enumerate([(1, 1), (2, 2), (3, 1), (4, 0)], start=1):
        keeper.keep(study)
        client.post(f"{URL}/{study}/suggestions").raise_for_status()
        told = {"result": {"loss": loss, "speed": speed}}
        client.post(f"{URL}/{study}/trials/{number}/complete", json=told).raise_for_status()
    best = client.get(f"{URL}/{study}/best").json()
    assert [trial["number"] for trial in best["trials"]] == [1, 2]
    page = client.get(f"{URL}/{study}/trials", params={"limit": 3}).json()
    rest = client.get(f"{URL}/{study}/trials", params={"cursor": page["next_cursor"]}).json()
    assert [trial["number"] for trial in page["items"] + rest["items"]] == [1, 2, 3, 4]
    clock.now += timedelta(seconds=1)
    assert client.post(URL, json={"spec": {**OWN, "warm_start": [study]}}).status_code == 422
    again = create(client, {**spec, "name": "again", "warm_start": "search"})
    keeper.keep(again["id"])
    assert len(client.post(f"{URL}/again/suggestions").json()["trials"]) == 1
