"""What charts of a study need: columns, curves, importance, what more trials would bring; and studies made from
others.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from starlette.testclient import TestClient

from api.app.unit_of_work import AppContext
from api.auth import Caller
from api.studies import service
from core.db.engine import SessionFactory, unit_of_work
from core.db.repositories import questions
from core.db.repositories.questions import QuestionKind
from core.db.tables import Event, Study, Trial
from executors.fake import FakeEngine, FakeExecutor
from scheduler.control.context import ControlContext
from scheduler.control.questions.answers import QuestionAnswerer

SPEC: dict[str, Any] = {
    "name": "search",
    "parameters": {
        "lr": {"type": "float", "min": 0.001, "max": 1, "scale": "log"},
        "kind": {"type": "categorical", "values": ["a", "b"]},
        "depth": {"type": "integer", "min": 1, "max": 9, "when": {"kind": "b"}},
    },
    "metric": "score",
    "goal": "maximize",
    "algorithm": "random",
    "budget": {"trials": 60, "parallel": 2},
}
URL = "/api/v1/studies"


@pytest.fixture
def search(client: TestClient) -> str:
    answer = client.post(URL, json={"spec": SPEC})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


@pytest.fixture(autouse=True)
def scheduler(monkeypatch: pytest.MonkeyPatch, sessions: SessionFactory, clock: Any) -> list[Mapping[str, Any]]:
    """Answers as the control loop does; holds what it was asked."""
    requested: list[Mapping[str, Any]] = []

    async def answer(
        platform: AppContext, caller: Caller, kind: QuestionKind, ask: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        requested.append(ask)
        with platform.write() as work:
            questions.put(work.session, f"question-{len(requested)}", caller.user_id, ask, work.now, kind)
        QuestionAnswerer(
            ControlContext(sessions, FakeExecutor(FakeEngine()), platform.wakeup, clock, "test", b"k" * 32)
        ).answer()
        with platform.read() as work:
            found = questions.answer_to(work.session, f"question-{len(requested)}")
        assert found is not None
        assert "error" not in found
        return found

    monkeypatch.setattr(service, "answer", answer)
    return requested


def add_trials(sessions: SessionFactory, study: str, count: int, clock: Any, **values: Any) -> None:
    """Every third has the branch ``b``; the learning rate alone decides; each fifth has failed."""
    rows = []
    for number in range(1, count + 1):
        lr = 10 ** (-3 * ((number * 0.618) % 1))
        point = {"lr": lr, "kind": "b", "depth": number % 9 + 1} if number % 3 == 0 else {"lr": lr, "kind": "a"}
        failed = number % 5 == 0
        rows.append(
            {
                "study_id": study, "number": number, "state": "failed" if failed else "succeeded", "parameters": point,
                "result": None if failed else {"score": lr}, "reason": "it exploded" * 60 if failed else "",
                "memo": {}, "created_at": clock.now, "ended_at": clock.now, **values,
            }
        )  # fmt: skip
    with unit_of_work(sessions) as session:
        session.execute(insert(Trial), rows)
        session.execute(update(Study).where(Study.id == study).values(trial_count=count))


def test_trials_whose_jobs_are_in_the_queue_are_counted(
    client: TestClient, sessions: SessionFactory, search: str, clock: Any
) -> None:
    job = client.post("/api/v1/jobs", json={"spec": {"name": "one", "command": "train"}})
    assert job.status_code == 201, job.text
    add_trials(sessions, search, 3, clock, state="running", ended_at=None)
    with unit_of_work(sessions) as session:
        session.execute(update(Trial).where(Trial.number == 2).values(job_id=job.json()["id"]))
    reported = client.get(f"{URL}/{search}").json()
    assert (reported["trials"], reported["waiting"]) == ({"running": 3}, 1)


def test_nothing_is_known_of_a_study_without_trials(client: TestClient, search: str) -> None:
    columns = client.get(f"{URL}/{search}/columns").json()
    assert (columns["number"], columns["parameters"], columns["metrics"]) == (
        [],
        {"lr": [], "kind": [], "depth": []},
        {"score": []},
    )
    assert client.get(f"{URL}/{search}/curves").json() == {"metric": "score", "curves": [], "total": 0}
    importance = client.get(f"{URL}/{search}/importance").json()
    assert (importance["parameters"], importance["reason"]) == (
        [],
        "Not known: 0 trials have a result, and 10 are needed.",
    )
    prediction = client.get(f"{URL}/{search}/prediction").json()
    assert (prediction["points"], prediction["chance"]) == ([], None)
    assert prediction["reason"].startswith("Not known: 0 trials have a result")
    assert client.get(f"{URL}/{search}/best").json()["regret"] == []


def test_columns_have_nulls_where_a_trial_has_nothing_and_then_tell_only_what_is_new(
    client: TestClient, search: str, sessions: SessionFactory, clock: Any
) -> None:
    add_trials(sessions, search, 6, clock)
    columns = client.get(f"{URL}/{search}/columns").json()
    assert columns["number"] == [1, 2, 3, 4, 5, 6]
    assert columns["parameters"]["depth"] == [None, None, 4, None, None, 7]
    assert columns["metrics"]["score"][4] is None
    assert (columns["state"][4], len(columns["reason"][4])) == ("failed", 300)
    clock.now += timedelta(minutes=5)
    with unit_of_work(sessions) as session:
        session.add(
            Trial(study_id=search, number=7, state="running", parameters={"lr": 0.1, "kind": "a"}, created_at=clock.now)
        )
    since = client.get(f"{URL}/{search}/columns", params={"since": clock.now.isoformat()}).json()
    assert (since["number"], since["state"]) == ([7], ["running"])
    assert client.get(f"{URL}/{search}/columns", params={"since": "yesterday"}).status_code == 422


def test_what_matters_is_found_and_queried_once_for_each_number_of_results(
    client: TestClient, search: str, sessions: SessionFactory, clock: Any, scheduler: list[Any]
) -> None:
    add_trials(sessions, search, 60, clock)
    reported = client.get(f"{URL}/{search}/importance").json()
    names = [one["name"] for one in reported["parameters"]]
    assert (names[0], sorted(names), reported["trials"], reported["metric"]) == (
        "lr",
        ["depth", "kind", "lr"],
        48,
        "score",
    )
    assert sum(one["importance"] for one in reported["parameters"]) == pytest.approx(1)
    assert [one["trials"] for one in reported["parameters"] if one["name"] == "depth"] == [16]
    client.get(f"{URL}/search/importance").raise_for_status()
    assert len(scheduler) == 1
    assert client.get(f"{URL}/{search}/importance", params={"metric": "loss"}).status_code == 422
    ahead = client.get(f"{URL}/{search}/prediction", params={"more": 40}).json()
    assert ahead["reason"] == ""
    assert ahead["points"][-1]["more"] == 40
    for point in ahead["points"]:  # more is better
        assert ahead["best"] <= point["low"] <= point["likely"] <= point["high"]
    assert 0 <= ahead["chance"] <= 1
    assert client.get(f"{URL}/{search}/prediction", params={"more": 0}).status_code == 422


def test_curves_are_those_of_the_best_and_the_newest(
    client: TestClient, search: str, sessions: SessionFactory, clock: Any
) -> None:
    add_trials(sessions, search, 30, clock, curve={"steps": [1, 2], "values": [0.1, 0.2]})
    reported = client.get(f"{URL}/{search}/curves", params={"limit": 6}).json()
    numbers = [one["number"] for one in reported["curves"]]
    assert (len(numbers), reported["total"]) == (6, 30)
    assert client.get(f"{URL}/{search}/best").json()["trials"][0]["number"] in numbers
    assert 30 in numbers
    assert client.get(f"{URL}/{search}/curves", params={"limit": 1000}).status_code == 422


def test_a_list_is_filtered(client: TestClient, search: str) -> None:
    client.post(URL, json={"spec": {**SPEC, "name": "other"}}).raise_for_status()
    client.post(f"{URL}/other/pause").raise_for_status()

    def names(**query: Any) -> list[str]:
        return [one["name"] for one in client.get(URL, params=query).json()["items"]]

    assert names(state="paused") == ["other"]
    assert names(search="SEAR") == ["search"]
    assert names(search="%") == []
    assert names(user="nobody") == []
    assert client.get(URL, params={"state": "asleep"}).status_code == 422


def test_a_clone_has_changes_a_free_name_and_may_start_warm(
    client: TestClient, search: str, sessions: SessionFactory, clock: Any
) -> None:
    add_trials(sessions, search, 12, clock)
    made = client.post(f"{URL}/search/clone", json={"changes": {"budget": {"trials": 5}}, "warm_start": True})
    assert made.status_code == 201, made.text
    spec = made.json()["spec"]
    assert (spec["name"], spec["budget"]["trials"], spec["budget"]["parallel"]) == ("search-2", 5, 2)
    assert spec["warm_start"] == [search]
    with unit_of_work(sessions) as session:
        row = session.get_one(Study, made.json()["id"])
        assert len(row.prior_trials) == 10
        reasons = session.scalars(select(Event.reason).where(Event.kind == "study.created").order_by(Event.id)).all()
    assert f"cloned from search ({search})" in reasons
    other = {"changes": {"goal": "minimize", "parameters": {"kind": {"type": "categorical", "values": ["b"]}}}}
    dry = client.post(f"{URL}/search/clone", json={**other, "dry_run": True})
    assert (dry.status_code, dry.json()["metrics"]) == (200, [{"name": "score", "goal": "minimize"}])
    assert dry.json()["parameters"]["kind"]["values"] == ["b"]
    wrong = client.post(f"{URL}/search/clone", json={"changes": {"parameters": {"lr": {"min": 2}}, "budget": None}})
    assert wrong.status_code == 422
    assert {one["path"] for one in wrong.json()["errors"]} == {"parameters.lr", "budget"}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"parameters": [1]}, "parameters"),
        ({"parameters": "x"}, "parameters"),
        ({"warm_start": 5}, "warm_start"),
        ({"warm_start": [["search"]]}, "warm_start"),
        ({"warm_start": {"study": "search"}}, "warm_start"),
    ],
)
def test_changes_of_a_wrong_kind_are_refused_by_field(
    client: TestClient, search: str, changes: dict[str, Any], field: str
) -> None:
    refused = client.post(f"{URL}/search/clone", json={"changes": changes, "warm_start": True})
    assert refused.status_code == 422, refused.text
    assert [one["path"] for one in refused.json()["errors"]] == [field]


def test_one_earlier_study_may_be_named_without_a_list(client: TestClient, search: str) -> None:
    client.post(URL, json={"spec": {**SPEC, "name": "earlier"}}).raise_for_status()
    body = {"changes": {"warm_start": "earlier"}, "warm_start": True, "dry_run": True}
    dry = client.post(f"{URL}/search/clone", json=body)
    assert (dry.status_code, dry.json().get("warm_start")) == (200, ["earlier", search]), dry.text


def test_a_clones_trials_do_not_write_where_the_originals_did(client: TestClient) -> None:
    spec = {**SPEC, "name": "jobs", "template": {"command": "train", "output": "output/mine", "workers": 2}}
    client.post(URL, json={"spec": spec}).raise_for_status()
    made = client.post(f"{URL}/jobs/clone", json={"changes": {"template": {"workers": 3}}}).json()["spec"]["template"]
    assert (made["output"], made["name"], made["roles"]["worker"]["replicas"]) == (None, "jobs-2", 3)
