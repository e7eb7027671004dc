"""Studies over REST: created whole or refused with every mistake, moved as their state allows, asked and told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient
from trainmaster.studies import Algorithm
from trainmaster.wire.jobs import WaitReasonView

from api.auth import Caller, Scope
from api.forecasts import placing
from api.studies.access import StudyAccess
from api.studies.asking import Answer, Ask, Given, take
from api.work import Work
from core.bell import TOPIC_STUDY, NullBell
from core.db import leases
from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Event, Study, Trial
from core.domain.errors import IdempotencyMismatch
from core.domain.studies.budget import FORGIVEN, PAUSED_AT, outlook
from executors.fake import FakeEngine, FakeExecutor
from scheduler.control.context import Control
from scheduler.control.studies.facts import load_study
from scheduler.control.studies.history import History
from scheduler.control.studies.keeper import StudyKeeper
from scheduler.tuning import Proposal, Question, propose
from scheduler.tuning.proposers import Proposers

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
    refused = client.post(f"{URL}/search/extend", json={"trials": 9_999})
    assert (refused.status_code, refused.json()["field"]) == (422, "trials")
    assert refused.json()["detail"] == "trials: all together must be at most 10000, not 10009."


def test_a_study_that_would_end_again_at_once_for_its_failures_is_not_extended(
    client: TestClient, sessions: SessionFactory
) -> None:
    study = create(client, {**SPEC, "budget": {"trials": 9, "failed_trials": 1}})["id"]
    with unit_of_work(sessions) as session:
        session.execute(update(Study).values(state="failed", trial_count=2))
        session.add_all(
            Trial(study_id=study, number=number, state="failed", parameters={}, memo={}, created_at=datetime.now(UTC))
            for number in (1, 2)
        )
    refused = client.post(f"{URL}/search/extend", json={"trials": 5})
    assert (refused.status_code, refused.json()["field"]) == (422, "failed_trials")
    assert client.post(f"{URL}/search/extend", json={"trials": 5, "failed_trials": 1}).json()["state"] == "running"
    refused = client.post(f"{URL}/search/extend", json={"failed_trials": 9_999})
    assert refused.json()["field"] == "failed_trials"


def test_a_population_is_not_made_too_small_to_have_a_worst_member(client: TestClient) -> None:
    create(client, {**SPEC, "population": {"interval": 2}, "budget": {"trials": 20, "parallel": 8}})
    refused = client.post(f"{URL}/search/extend", json={"parallel": 3})
    assert (refused.status_code, refused.json()["field"]) == (422, "parallel")
    assert client.post(f"{URL}/search/extend", json={"parallel": 4}).status_code == 200


def test_failures_from_before_a_study_was_extended_do_not_end_it_again(
    client: TestClient, sessions: SessionFactory
) -> None:
    study = create(client, SPEC)["id"]
    with unit_of_work(sessions) as session:
        session.execute(update(Study).values(state="failed", reason="The first 5 trials all failed.", trial_count=5))
        for number in range(1, 6):
            session.add(
                Trial(
                    study_id=study, number=number, state="failed", parameters={"x": number}, memo={}, reason="no disk",
                    gpu_s=0.0, created_at=datetime.now(UTC),
                )
            )  # fmt: skip
    assert client.post(f"{URL}/search/extend", json={"trials": 6}).json()["state"] == "running"
    with unit_of_work(sessions) as session:
        facts = load_study(session, study, datetime.now(UTC), History())
        assert facts is not None
        assert outlook(facts.spec.budget, facts.spent).end is None
    clone = client.post(f"{URL}/search/clone", json={}).json()["id"]
    with unit_of_work(sessions) as session:
        assert FORGIVEN not in session.get_one(Study, clone).spec


def test_an_ended_study_gets_so_much_time_as_is_added_from_now_on(client: TestClient, sessions: SessionFactory) -> None:
    create(client, {**SPEC, "budget": {"trials": 4, "max_time": "1h"}})
    first = client.post(f"{URL}/search/extend", json={"max_time": 600}).json()
    assert first["spec"]["budget"]["max_time"] == 4200
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    with unit_of_work(sessions) as session:
        session.execute(update(Study).values(state="succeeded", reason="Its time is over.", started_at=long_ago))
    changed = client.post(f"{URL}/search/extend", json={"max_time": 1800}).json()
    assert (changed["state"], changed["spec"]["budget"]["max_time"]) == ("running", 1800)
    with unit_of_work(sessions) as session:
        assert session.scalars(select(Study.started_at)).one() > long_ago


def test_a_study_of_which_every_point_was_asked_for_and_told_has_ended(
    client: TestClient, keeper: StudyKeeper, sessions: SessionFactory
) -> None:
    few = {"x": {"type": "integer", "min": 1, "max": 2}}
    study = create(client, {**OWN, "parameters": few, "algorithm": "grid", "budget": {"trials": 9, "parallel": 4}})[
        "id"
    ]
    keeper.keep(study)
    trials = client.post(f"{URL}/search/suggestions", json={"count": 4}).json()["trials"]
    assert sorted(one["parameters"]["x"] for one in trials) == [1, 2]
    keeper.keep(study)
    assert client.get(f"{URL}/search").json()["state"] == "running", "two are still being tried"
    for one in trials:
        client.post(f"{URL}/search/trials/{one['number']}/complete", json={"result": {"score": 1.0}})
    keeper.keep(study)
    ended = client.get(f"{URL}/search").json()
    assert (ended["state"], ended["reason"]) == ("succeeded", "Every point of the space was tried.")


def test_a_study_that_halves_is_learnt_from_without_the_sizes(client: TestClient, sessions: SessionFactory) -> None:
    halves = {**SPEC, "fidelity": {"parameter": "epochs", "min": 1, "max": 9}}
    study = create(client, halves)["id"]
    with unit_of_work(sessions) as session:
        for number, (epochs, score) in enumerate([(1, 0.9), (9, 0.5), (9, 0.7)], start=1):
            session.add(
                Trial(
                    study_id=study, number=number, state="succeeded", parameters={"x": number / 10, "epochs": epochs},
                    memo={}, reason="", gpu_s=0.0, created_at=datetime.now(UTC), result={"score": score},
                )
            )  # fmt: skip
    again = create(client, {**SPEC, "name": "again", "warm_start": "search"})["id"]
    with unit_of_work(sessions) as session:
        known = session.get_one(Study, again).known
    assert known == [
        {"parameters": {"x": 0.3}, "values": [0.7]},
        {"parameters": {"x": 0.2}, "values": [0.5]},
    ]


def test_time_stands_still_while_a_study_is_paused(client: TestClient, sessions: SessionFactory, clock: Any) -> None:
    study = create(client, {**SPEC, "budget": {"trials": 4, "max_time": "1h"}})["id"]

    def elapsed_s() -> float:
        with unit_of_work(sessions) as session:
            elapsed: timedelta = clock.now - session.get_one(Study, study).started_at
            return elapsed.total_seconds()

    for worked_s in (600, 1200):
        clock.advance(600)
        client.post(f"{URL}/search/pause").raise_for_status()
        clock.advance(7200)
        client.post(f"{URL}/search/resume").raise_for_status()
        assert elapsed_s() == worked_s
    with unit_of_work(sessions) as session:
        assert PAUSED_AT not in session.get_one(Study, study).spec


def test_points_are_asked_for_and_told(client: TestClient, keeper: StudyKeeper, sessions: SessionFactory) -> None:
    study = create(client, OWN)["id"]
    keeper.keep(study)
    asked = client.post(f"{URL}/{study}/suggestions", json={"count": 5}).json()
    assert [trial["number"] for trial in asked["trials"]] == [1, 2]
    full = client.post(f"{URL}/{study}/suggestions").json()
    assert full["trials"] == []
    assert "As many trials" in full["reason"]
    with unit_of_work(sessions) as session:
        session.execute(update(Study).values(state="succeeded", reason="All is done."))
    assert client.post(f"{URL}/{study}/suggestions").json()["reason"] == "The study has succeeded. All is done."
    with unit_of_work(sessions) as session:
        session.execute(update(Study).values(state="running", reason=""))
    assert (asked["is_over"], full["is_over"]) == (False, False)
    done = client.post(f"{URL}/{study}/trials/1/complete", json={"result": {"score": 0.5}})
    assert (done.status_code, done.json()["state"]) == (200, "succeeded")
    again = client.post(f"{URL}/{study}/trials/1/complete", json={"result": {"score": 0.5}})
    assert (again.status_code, again.json()) == (200, done.json())
    assert client.post(f"{URL}/{study}/trials/1/complete", json={"result": {"score": 1}}).status_code == 409
    assert client.post(f"{URL}/{study}/trials/1/complete", json={}).status_code == 409
    assert client.post(f"{URL}/{study}/trials/2/complete", json={"result": {"loss": 1}}).status_code == 422
    assert client.post(f"{URL}/{study}/trials/9/complete", json={}).status_code == 404
    failed = client.post(f"{URL}/{study}/trials/2/complete", json={"reason": "it exploded"}).json()
    assert (failed["state"], failed["reason"]) == ("failed", "it exploded")
    assert client.post(f"{URL}/{study}/trials/2/complete", json={"reason": "it exploded"}).json() == failed
    for number in (3, 4):
        keeper.keep(study)
        client.post(f"{URL}/{study}/suggestions").raise_for_status()
        if number == 4:  # all are given, and one is being tried still
            spent = client.post(f"{URL}/{study}/suggestions").json()
            assert (spent["trials"], spent["is_over"]) == ([], True)
        client.post(f"{URL}/{study}/trials/{number}/complete", json={"result": {"score": number}}).raise_for_status()
    keeper.keep(study)
    assert client.post(f"{URL}/{study}/suggestions").json()["is_over"] is True
    ended = client.get(f"{URL}/{study}").json()
    assert (ended["state"], ended["best"]["number"], ended["best_so_far"]) == (
        "succeeded",
        4,
        [[1, 0.5], [3, 3], [4, 4]],
    )
    with unit_of_work(sessions) as session:
        points = list(session.scalars(select(Trial.parameters)))
    assert len({point["x"] for point in points}) == 4


def test_a_paused_study_has_more_points_later(client: TestClient, keeper: StudyKeeper) -> None:
    study = create(client, OWN)["id"]
    keeper.keep(study)
    client.post(f"{URL}/{study}/pause").raise_for_status()
    asked = client.post(f"{URL}/{study}/suggestions").json()
    assert (asked["trials"], asked["is_over"]) == ([], False)
    client.post(f"{URL}/{study}/stop").raise_for_status()
    assert client.post(f"{URL}/{study}/suggestions").json()["is_over"] is True


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
    assert client.get(URL).json()["items"][0]["front_size"] == 2
    page = client.get(f"{URL}/{study}/trials", params={"limit": 3}).json()
    rest = client.get(f"{URL}/{study}/trials", params={"cursor": page["next_cursor"]}).json()
    assert [trial["number"] for trial in page["items"] + rest["items"]] == [1, 2, 3, 4]
    clock.now += timedelta(seconds=1)
    assert client.post(URL, json={"spec": {**OWN, "warm_start": [study]}}).status_code == 422
    again = create(client, {**spec, "name": "again", "warm_start": "search"})
    keeper.keep(again["id"])
    assert len(client.post(f"{URL}/again/suggestions").json()["trials"]) == 1


def test_who_has_its_name_and_goes_on_is_told(client: TestClient, sessions: SessionFactory, clock: Any) -> None:
    first = create(client, SPEC)
    assert first["namesakes"] == []
    clock.now += timedelta(seconds=1)
    second = create(client, SPEC)
    assert second["namesakes"] == [first["id"]]
    shown = client.get(f"{URL}/search").json()
    assert (shown["id"], shown["namesakes"]) == (second["id"], [first["id"]])
    with unit_of_work(sessions) as session:
        session.get_one(Study, first["id"]).state = "succeeded"
    assert client.get(f"{URL}/search").json()["namesakes"] == []


def test_which_algorithm_auto_is_is_told_with_the_reason(client: TestClient, keeper: StudyKeeper) -> None:
    made = create(client, {**OWN, "algorithm": "auto", "budget": {"trials": 500}})
    assert (made["algorithm"], made["algorithm_chosen"]) == ("auto", None)
    keeper.keep(made["id"])
    shown = client.get(f"{URL}/{made['id']}").json()
    assert (shown["algorithm"], shown["algorithm_chosen"]) == ("auto", "tpe")
    assert "its budget has more than 250 trials" in shown["algorithm_reason"]
    chosen = create(client, {**OWN, "name": "chosen"})
    keeper.keep(chosen["id"])
    assert client.get(f"{URL}/chosen").json()["algorithm_chosen"] is None


def test_mistakes_of_the_template_and_of_studies_to_start_from_are_told_together(client: TestClient) -> None:
    spec = {**SPEC, "warm_start": ["nobody", "nowhere"], "template": {"command": "train", "input": "nowhere/x"}}
    for dry_run in (True, False):
        answer = client.post(URL, json={"spec": spec, "dry_run": dry_run})
        assert answer.status_code == 422
        told = [one["path"] for one in answer.json()["errors"]]
        assert told == ["warm_start[0]", "warm_start[1]", "template.input"]


def test_the_same_key_makes_no_second_study(client: TestClient) -> None:
    key = {"Idempotency-Key": "once"}
    first = client.post(URL, json={"spec": SPEC}, headers=key)
    again = client.post(URL, json={"spec": SPEC}, headers=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first.headers
    assert len(client.get(URL).json()["items"]) == 1
    other = client.post(URL, json={"spec": {**SPEC, "name": "other"}}, headers=key)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")


def test_what_a_key_made_and_was_deleted_is_not_made_anew(client: TestClient, sessions: SessionFactory) -> None:
    key = {"Idempotency-Key": "once"}
    made = client.post(URL, json={"spec": OWN}, headers=key).json()
    with unit_of_work(sessions) as session:
        session.get_one(Study, made["id"]).state = "cancelled"
    assert client.delete(f"{URL}/{made['id']}").status_code == 204
    answer = client.post(URL, json={"spec": OWN}, headers=key)
    assert answer.status_code == 409
    assert "was deleted" in answer.json()["detail"]


def test_a_clone_knows_its_origin_and_is_made_once(client: TestClient) -> None:
    original = create(client, SPEC)
    assert original["cloned_from"] is None
    key = {"Idempotency-Key": "once"}
    clones = [client.post(f"{URL}/search/clone", json={}, headers=key).json() for _ in range(2)]
    assert [clone["cloned_from"] for clone in clones] == [original["id"]] * 2
    assert clones[0]["id"] == clones[1]["id"]
    assert client.get(f"{URL}/{clones[0]['id']}").json()["cloned_from"] == original["id"]
    assert {one["name"]: one["cloned_from"] for one in client.get(URL).json()["items"]} == {
        "search": None, "search-2": original["id"],
    }  # fmt: skip


class Asking:
    """Proposals as they are; meanwhile, once, somebody asks for a point."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.ask, self.asked = ask, 0
        self.answers: list[Any] = []

    def __call__(self, question: Question) -> list[Proposal]:
        self.asked += 1
        if self.asked == 2:
            self.answers.append(self.ask())
        return propose(question)

    def expect(self, algorithm: Algorithm) -> None:
        pass

    def close(self) -> None:
        pass


def test_points_are_drawn_a_few_at_a_time_and_not_lost_to_who_asks_meanwhile(
    client: TestClient, sessions: SessionFactory, clock: Any
) -> None:
    study = create(client, {**OWN, "algorithm": "tpe", "budget": {"trials": 50, "parallel": 8}})["id"]
    asking = Asking(lambda: client.post(f"{URL}/{study}/suggestions", json={"count": 2}).json()["trials"])
    control = Control(sessions, FakeExecutor(FakeEngine()), NullBell(), clock, "test", b"k" * 32)
    keeper = StudyKeeper(control, cast("Proposers", asking))
    keeper.keep(study)
    ((first, second),) = asking.answers
    with unit_of_work(sessions) as session:
        row = session.get_one(Study, study)
        prepared, proposed = row.prepared, row.proposed
    assert len(prepared) == 14  # the two that were taken are drawn anew with the next result
    # Each that was drawn is taken or ready, and none is there twice.
    points = [first["parameters"]["x"], second["parameters"]["x"], *(one["parameters"]["x"] for one in prepared)]
    assert len(set(points)) == len(points) == proposed
    client.post(f"{URL}/{study}/trials/1/complete", json={"result": {"score": 1.0}}).raise_for_status()
    keeper.keep(study)
    with unit_of_work(sessions) as session:
        again = session.get_one(Study, study).prepared
    # What knows of the result comes first; the others are a reserve.
    assert again[2:] == prepared
    assert not [one for one in again[:2] if one in prepared]
    # For each result two are drawn, whoever asked for how many meanwhile; without a result, a few are given away first.
    asked = asking.asked
    ask = {"count": 1}
    for _ in range(2):
        assert client.post(f"{URL}/{study}/suggestions", json=ask).json()["trials"][0]["parameters"] in [
            one["parameters"] for one in again
        ]
        keeper.keep(study)
    assert asking.asked == asked
    client.post(f"{URL}/{study}/trials/2/complete", json={"result": {"score": 2.0}}).raise_for_status()
    keeper.keep(study)
    assert asking.asked == asked + 1
    with unit_of_work(sessions) as session:
        last = session.get_one(Study, study).prepared
    assert (len(last), [one for one in last[:2] if one in again], last[2:]) == (16, [], again[2:])


def test_the_same_key_gives_the_same_trials(client: TestClient, keeper: StudyKeeper) -> None:
    study = create(client, {**OWN, "budget": {"trials": 9, "parallel": 6}})["id"]
    keeper.keep(study)
    key = {"Idempotency-Key": "once"}
    first = client.post(f"{URL}/{study}/suggestions", json={"count": 2}, headers=key)
    again = client.post(f"{URL}/{study}/suggestions", json={"count": 2}, headers=key)
    assert [trial["number"] for trial in first.json()["trials"]] == [1, 2]
    assert [trial["parameters"] for trial in again.json()["trials"]] == [
        trial["parameters"] for trial in first.json()["trials"]
    ]
    assert "Idempotency-Replayed" not in first.headers
    assert again.headers["Idempotency-Replayed"] == "true"
    assert client.get(f"{URL}/{study}").json()["trials"] == {"running": 2}
    other = client.post(f"{URL}/{study}/suggestions", json={"count": 1}, headers=key)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")
    client.post(f"{URL}/{study}/trials/1/complete", json={"result": {"score": 0.5}}).raise_for_status()
    late = client.post(f"{URL}/{study}/suggestions", json={"count": 2}, headers=key).json()
    assert [trial["state"] for trial in late["trials"]] == ["succeeded", "running"]


def test_several_who_ask_at_once_get_trials_of_their_own_and_errors_of_their_own(
    client: TestClient, keeper: StudyKeeper, sessions: SessionFactory, clock: Any
) -> None:
    study = create(client, {**OWN, "budget": {"trials": 9, "parallel": 5}})["id"]
    keeper.keep(study)
    used = client.post(f"{URL}/{study}/suggestions", json={"count": 2}, headers={"Idempotency-Key": "used"}).json()
    asks = [Ask(), Ask(3, key="used"), Ask(key="fresh"), Ask(2, key="used"), Ask(2, client="program"), Ask()]
    with unit_of_work(sessions) as session:
        user = session.scalars(select(Study.user_id)).one()
        caller = Caller(user, "admin", True, frozenset({Scope.ADMIN}), "token", {})
        given = take(Work(session, clock()), StudyAccess(caller, study, "member"), asks)
    one, wrong, fresh, again, fewer, none = given
    assert isinstance(wrong, IdempotencyMismatch)
    assert [_numbers(answer) for answer in (one, fresh, again, fewer, none)] == [[3], [4], [1, 2], [5], []]
    assert isinstance(none, Given)
    assert "As many trials as it may have at once" in (none.suggestions.reason or "")
    # What was answered is what was written, and each point was given once.
    trials = client.get(f"{URL}/{study}/trials").json()["items"]
    assert [(trial["number"], trial["client"]) for trial in trials] == [
        (n, "program" if n == 5 else None) for n in range(1, 6)
    ]
    points = {trial["number"]: trial["parameters"]["x"] for trial in trials}
    assert len(set(points.values())) == 5
    told = [trial for answer in (one, fresh, fewer) if isinstance(answer, Given) for trial in answer.suggestions.trials]
    assert {trial.number: trial.parameters["x"] for trial in told} == {number: points[number] for number in (3, 4, 5)}
    assert [trial["number"] for trial in used["trials"]] == [1, 2]


def _numbers(answer: Answer) -> list[int]:
    assert isinstance(answer, Given)
    return [trial.number for trial in answer.suggestions.trials]


def test_an_empty_answer_does_not_use_up_its_key(client: TestClient, keeper: StudyKeeper) -> None:
    study = create(client, {**OWN, "budget": {"trials": 9, "parallel": 1}})["id"]
    keeper.keep(study)
    client.post(f"{URL}/{study}/suggestions").raise_for_status()
    key = {"Idempotency-Key": "once"}
    assert client.post(f"{URL}/{study}/suggestions", headers=key).json()["trials"] == []
    client.post(f"{URL}/{study}/trials/1/complete", json={"result": {"score": 0.5}}).raise_for_status()
    keeper.keep(study)
    assert [trial["number"] for trial in client.post(f"{URL}/{study}/suggestions", headers=key).json()["trials"]] == [2]


def test_a_client_that_asks_again_gets_what_it_has_still(client: TestClient, keeper: StudyKeeper) -> None:
    study = create(client, {**OWN, "budget": {"trials": 9, "parallel": 3}})["id"]
    keeper.keep(study)

    def ask(name: str, count: int = 1) -> list[int]:
        answer = client.post(f"{URL}/{study}/suggestions", json={"client": name, "count": count})
        answer.raise_for_status()
        return [trial["number"] for trial in answer.json()["trials"]]

    assert ask("a") == [1]
    assert ask("b") == [2]
    assert ask("a") == [1]
    assert ask("a", 3) == [1, 3], "what it has, and what there is room for"
    client.post(f"{URL}/{study}/trials/1/complete", json={"result": {"score": 0.5}}).raise_for_status()
    keeper.keep(study)
    assert ask("a") == [3]
    assert ask("c") == [4]
    assert ask("d") == []
    client.post(f"{URL}/{study}/pause").raise_for_status()
    told = client.get(f"{URL}/{study}/trials").json()["items"]
    assert [trial["client"] for trial in told] == ["a", "b", "a", "c"]


def test_a_trial_of_which_nothing_is_heard_is_lost_and_its_point_given_again(
    client: TestClient, keeper: StudyKeeper, clock: Any
) -> None:
    spec = {**OWN, "budget": {"trials": 9, "parallel": 2}, "lost_after": "10m", "initial": [{"x": 0.125}]}
    study = create(client, spec)["id"]
    keeper.keep(study)
    client.post(f"{URL}/{study}/suggestions", json={"count": 2}).raise_for_status()
    clock.advance(400)
    alive = client.post(f"{URL}/{study}/trials/2/heartbeat")
    assert (alive.status_code, alive.json()["state"]) == (200, "running")
    clock.advance(201)
    keeper.keep(study)
    lost, kept = client.get(f"{URL}/{study}/trials").json()["items"]
    assert (lost["state"], kept["state"]) == ("failed", "running")
    assert lost["reason"].startswith("Lost: ")
    assert "600 s" in lost["reason"]
    late = client.post(f"{URL}/{study}/trials/1/complete", json={"result": {"score": 1}})
    assert late.status_code == 409
    assert "Lost: " in late.json()["detail"]
    assert client.post(f"{URL}/{study}/trials/1/heartbeat").json()["state"] == "failed"
    (again,) = client.post(f"{URL}/{study}/suggestions").json()["trials"]
    assert (again["number"], again["parameters"]) == (3, {"x": 0.125})
    assert client.post(f"{URL}/{study}/trials/9/heartbeat").status_code == 404
    # Lost once more, it is left alone: it may be the point that its programs die of.
    clock.advance(601)
    keeper.keep(study)
    trials = client.post(f"{URL}/{study}/suggestions", json={"count": 2}).json()["trials"]
    assert len(trials) == 2
    assert {"x": 0.125} not in [trial["parameters"] for trial in trials]


def test_a_result_without_lost_after_may_take_most_of_a_day(
    client: TestClient, keeper: StudyKeeper, clock: Any
) -> None:
    study = create(client, OWN)["id"]
    keeper.keep(study)
    client.post(f"{URL}/{study}/suggestions").raise_for_status()
    clock.advance(86_000)
    keeper.keep(study)
    assert client.get(f"{URL}/{study}").json()["trials"] == {"running": 1}
    clock.advance(400)
    keeper.keep(study)
    assert client.get(f"{URL}/{study}").json()["trials"] == {"failed": 1}


def test_lost_after_is_for_studies_without_a_template(client: TestClient) -> None:
    answer = client.post(URL, json={"spec": {**SPEC, "lost_after": "1h"}})
    assert answer.status_code == 422
    assert [one["path"] for one in answer.json()["errors"]] == ["lost_after"]


def test_a_number_beyond_64_bits_is_refused_by_its_place(client: TestClient) -> None:
    text = """
name: search
parameters:
  kind: {type: categorical, values: [1, 99999999999999999999999]}
metric: score
goal: maximize
budget: {trials: 4}
"""
    answer = client.post(URL, json={"spec_text": text})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert "parameters.kind.values" in answer.json()["field"]
    assert "64 bits" in answer.json()["detail"]


def never(code: str, **numbers: Any) -> WaitReasonView:
    return WaitReasonView(code=code, sentence="needs 64 GPUs, and no node has more than 8.", numbers=numbers)


@pytest.mark.parametrize(
    ("reason", "template", "field"),
    [
        (never("never_fits", role="worker", short_of=["gpus"]), {"gpus": 64}, "template.gpus"),
        (
            never("never_fits", role="ps", short_of=["memory", "cpu"]),
            {"roles": {"worker": {"replicas": 1}, "ps": {"replicas": 1, "resources": {"memory": "900Gi"}}}},
            "template.roles.ps.resources.memory",
        ),
        (never("no_matching_node", node_selector={"a": "b"}), {"node_selector": {"a": "b"}}, "template.node_selector"),
        (never("no_matching_node", gpu_models=["h100"]), {"gpus": 1, "gpu_type": "h100"}, "template.gpu_type"),
        (never("too_large"), {"workers": 500, "cpu": 4}, "template"),
    ],
)
def test_a_study_whose_trials_could_never_start_is_refused_unless_nodes_are_to_come(
    client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    sessions: SessionFactory,
    clock: Any,
    reason: WaitReasonView,
    template: dict[str, Any],
    field: str,
) -> None:
    async def forecast(*_: Any) -> Any:
        return SimpleNamespace(wait_reason=reason)

    monkeypatch.setattr(placing, "forecast", forecast)
    spec = {**SPEC, "template": {**SPEC["template"], **template}}
    # Nobody plans: what nobody knows is not refused.
    create(client, {**spec, "name": "early"})
    with unit_of_work(sessions) as session:
        leases.mark(session, leases.TICK_DONE, holder="test", now=clock.now)
    for body in ({"spec": spec}, {"spec": spec, "dry_run": True}):
        answer = client.post(URL, json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_spec")
        assert [one["path"] for one in answer.json()["errors"]] == [field]
        assert "no node has more than 8" in answer.json()["detail"]
        assert "wait_for_nodes" in answer.json()["detail"]
    assert client.post(f"{URL}/early/clone", json={}).status_code == 422
    assert client.post(f"{URL}/early/clone", json={"wait_for_nodes": True}).status_code == 201
    assert client.post(URL, json={"spec": spec, "wait_for_nodes": True}).status_code == 201
    # A repeat has the answer that it had, whatever has become of the nodes since.
    key = {"Idempotency-Key": "before"}
    made = client.post(URL, json={"spec": {**spec, "name": "kept"}, "wait_for_nodes": True}, headers=key).json()
    again = client.post(URL, json={"spec": {**spec, "name": "kept"}}, headers=key)
    assert (again.status_code, again.json()["id"]) == (201, made["id"])
    assert again.headers["Idempotency-Replayed"] == "true"
    create(client, {**spec, "name": "patient", "template": {**spec["template"], "max_wait": "2h"}})
    assert client.post(URL, json={"spec": OWN}).status_code == 201


_STATES = ("running", "paused", "stopping", "succeeded", "failed", "cancelled")


@pytest.mark.parametrize(
    ("verb", "told"),
    [
        ("pause", ("paused", "paused already", "is being stopped", *(f"ended ({one})." for one in _STATES[3:]))),
        ("resume", ("it runs already", "running", "then extend it", *["extend it to have more trials"] * 3)),
        ("stop", ("stopping", "stopping", "stopping", "ended (succeeded).", "ended (failed).", "cancelled")),
        ("extend", ("running", "paused", "wait for its end, then extend it", "running", "running", "running")),
        ("clone", ("running",) * 6),
    ],
)
def test_each_verb_in_each_state_moves_the_study_or_says_why_not(
    client: TestClient, sessions: SessionFactory, verb: str, told: tuple[str, ...]
) -> None:
    body = {"extend": {"trials": 2}, "clone": {"changes": {"budget": {"trials": 2}}}}.get(verb)
    for state, words in zip(_STATES, told, strict=True):
        made = create(client, OWN)["id"]
        with unit_of_work(sessions) as session:
            session.execute(update(Study).where(Study.id == made).values(state=state))
        answer = client.post(f"{URL}/{made}/{verb}", json=body)
        if answer.is_success:
            assert answer.json()["state"] == words, (state, answer.text)
        else:
            assert (answer.status_code, answer.json()["code"]) == (409, "illegal_transition")
            assert words in answer.json()["detail"], (state, answer.text)
        client.post(f"{URL}/{made}/stop")
        with unit_of_work(sessions) as session:
            session.execute(update(Study).values(state="failed"))
        assert client.delete(f"{URL}/{made}").status_code == 204
        assert client.post(f"{URL}/{made}/{verb}", json=body).status_code == 404


def test_what_would_end_again_at_once_is_not_extended(client: TestClient, sessions: SessionFactory) -> None:
    spec = {**SPEC, "template": {"command": "train", "gpus": 1}, "budget": {"trials": 2, "gpu_hours": 1}}
    made = client.post(URL, json={"spec": spec, "wait_for_nodes": True}).json()["id"]
    with unit_of_work(sessions) as session:
        session.execute(update(Study).values(state="succeeded", trial_count=2))
        for number in (1, 2):
            session.add(
                Trial(
                    study_id=made, number=number, state="succeeded", parameters={"x": 0.5}, memo={}, result={"score": 1},
                    reason="", gpu_s=1_800, created_at=datetime(2026, 11, 23, tzinfo=UTC),
                )
            )  # fmt: skip

    def extended(**more: Any) -> Any:
        return client.post(f"{URL}/{made}/extend", json=more)

    assert (extended(gpu_hours=1).json()["field"], extended(trials=1).json()["field"]) == ("trials", "gpu_hours")
    assert "all 2 trials are made: it would end again at once" in extended(parallel=3).json()["detail"]
    assert extended(trials=1, gpu_hours=1).json()["state"] == "running"


def test_a_study_begins_with_those_alone_that_have_its_aim_and_that_are_seen(client: TestClient, as_user: Any) -> None:
    create(client, OWN)
    other = {**OWN, "name": "other", "goal": "minimize", "warm_start": ["search"]}
    refused = client.post(URL, json={"spec": other})
    assert refused.json()["field"] == "warm_start[0]"
    assert "study 'search' is to maximize score, and this one to minimize score" in refused.json()["detail"]
    client.post("/api/v1/projects", json={"name": "vision"})
    hidden = create(client, {**OWN, "name": "hidden", "project": "vision"})["id"]
    refused = as_user("ann").post(URL, json={"spec": {**OWN, "warm_start": [hidden]}})
    assert (refused.status_code, refused.json()["field"]) == (422, "warm_start[0]")
    assert f"there is no study '{hidden}' that you may see" in refused.json()["detail"]
