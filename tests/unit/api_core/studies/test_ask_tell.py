"""Studies whose points are asked for over REST by programs that try them themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from sqlalchemy import select, update
from starlette.testclient import TestClient
from trainmaster.studies import Algorithm

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller, Scope
from api.studies.access import StudyAccess
from api.studies.ask_tell import Answer, SuggestionAnswer, SuggestionRequest, take
from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Study, Trial
from core.domain.errors import IdempotencyMismatch
from core.wakeups import NoWakeup
from executors.fake import FakeEngine, FakeExecutor
from scheduler.control.context import ControlContext
from scheduler.control.studies.study_loop import StudyLoop
from scheduler.tuning import Proposal, ProposalRequest, propose
from scheduler.tuning.proposers import Proposers
from tests.unit.api_core.studies.test_studies_api import OWN, SPEC, URL, create


def test_a_study_of_which_every_point_was_requested_and_reported_has_ended(
    client: TestClient, study_loop: StudyLoop, sessions: SessionFactory
) -> None:
    few = {"x": {"type": "integer", "min": 1, "max": 2}}
    study = create(client, {**OWN, "parameters": few, "algorithm": "grid", "budget": {"trials": 9, "parallel": 4}})[
        "id"
    ]
    study_loop.reconcile(study)
    trials = client.post(f"{URL}/search/suggestions", json={"count": 4}).json()["trials"]
    assert sorted(one["parameters"]["x"] for one in trials) == [1, 2]
    study_loop.reconcile(study)
    assert client.get(f"{URL}/search").json()["state"] == "running", "two are still being tried"
    for one in trials:
        client.post(f"{URL}/search/trials/{one['number']}/complete", json={"result": {"score": 1.0}})
    study_loop.reconcile(study)
    ended = client.get(f"{URL}/search").json()
    assert (ended["state"], ended["reason"]) == ("succeeded", "Every point of the space was tried.")


def test_points_are_requested_and_reported(client: TestClient, study_loop: StudyLoop, sessions: SessionFactory) -> None:
    study = create(client, OWN)["id"]
    study_loop.reconcile(study)
    requested = client.post(f"{URL}/{study}/suggestions", json={"count": 5}).json()
    assert [trial["number"] for trial in requested["trials"]] == [1, 2]
    full = client.post(f"{URL}/{study}/suggestions").json()
    assert full["trials"] == []
    assert "maximum of parallel trials" in full["reason"]
    with unit_of_work(sessions) as session:
        session.execute(update(Study).values(state="succeeded", reason="All is done."))
    assert client.post(f"{URL}/{study}/suggestions").json()["reason"] == "The study has succeeded. All is done."
    with unit_of_work(sessions) as session:
        session.execute(update(Study).values(state="running", reason=""))
    assert (requested["is_over"], full["is_over"]) == (False, False)
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
        study_loop.reconcile(study)
        client.post(f"{URL}/{study}/suggestions").raise_for_status()
        if number == 4:  # all are given, and one is being tried still
            spent = client.post(f"{URL}/{study}/suggestions").json()
            assert (spent["trials"], spent["is_over"]) == ([], True)
        client.post(f"{URL}/{study}/trials/{number}/complete", json={"result": {"score": number}}).raise_for_status()
    study_loop.reconcile(study)
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


def test_a_paused_study_has_more_points_later(client: TestClient, study_loop: StudyLoop) -> None:
    study = create(client, OWN)["id"]
    study_loop.reconcile(study)
    client.post(f"{URL}/{study}/pause").raise_for_status()
    requested = client.post(f"{URL}/{study}/suggestions").json()
    assert (requested["trials"], requested["is_over"]) == ([], False)
    client.post(f"{URL}/{study}/stop").raise_for_status()
    assert client.post(f"{URL}/{study}/suggestions").json()["is_over"] is True


def test_a_study_with_a_template_is_not_queried(client: TestClient) -> None:
    create(client, SPEC)
    assert client.post(f"{URL}/search/suggestions").status_code == 409


class Asking:
    """Proposals as they are; meanwhile, once, somebody asks for a point."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.ask, self.requested = ask, 0
        self.answers: list[Any] = []

    def __call__(self, question: ProposalRequest) -> list[Proposal]:
        self.requested += 1
        if self.requested == 2:
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
    control = ControlContext(sessions, FakeExecutor(FakeEngine()), NoWakeup(), clock, "test", b"k" * 32)
    study_loop = StudyLoop(control, cast("Proposers", asking))
    study_loop.reconcile(study)
    ((first, second),) = asking.answers
    with unit_of_work(sessions) as session:
        row = session.get_one(Study, study)
        prepared, proposed = row.prefetched_points, row.proposed_count
    assert len(prepared) == 14  # the two that were taken are drawn anew with the next result
    # Each that was drawn is taken or ready, and none is there twice.
    points = [first["parameters"]["x"], second["parameters"]["x"], *(one["parameters"]["x"] for one in prepared)]
    assert len(set(points)) == len(points) == proposed
    client.post(f"{URL}/{study}/trials/1/complete", json={"result": {"score": 1.0}}).raise_for_status()
    study_loop.reconcile(study)
    with unit_of_work(sessions) as session:
        again = session.get_one(Study, study).prefetched_points
    # What knows of the result comes first; the others are a reserve.
    assert again[2:] == prepared
    assert not [one for one in again[:2] if one in prepared]
    # For each result two are drawn, whoever asked for how many meanwhile; without a result, a few are given away first.
    requested = asking.requested
    ask = {"count": 1}
    for _ in range(2):
        assert client.post(f"{URL}/{study}/suggestions", json=ask).json()["trials"][0]["parameters"] in [
            one["parameters"] for one in again
        ]
        study_loop.reconcile(study)
    assert asking.requested == requested
    client.post(f"{URL}/{study}/trials/2/complete", json={"result": {"score": 2.0}}).raise_for_status()
    study_loop.reconcile(study)
    assert asking.requested == requested + 1
    with unit_of_work(sessions) as session:
        last = session.get_one(Study, study).prefetched_points
    assert (len(last), [one for one in last[:2] if one in again], last[2:]) == (16, [], again[2:])


def test_the_same_key_gives_the_same_trials(client: TestClient, study_loop: StudyLoop) -> None:
    study = create(client, {**OWN, "budget": {"trials": 9, "parallel": 6}})["id"]
    study_loop.reconcile(study)
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
    client: TestClient, study_loop: StudyLoop, sessions: SessionFactory, clock: Any
) -> None:
    study = create(client, {**OWN, "budget": {"trials": 9, "parallel": 5}})["id"]
    study_loop.reconcile(study)
    used = client.post(f"{URL}/{study}/suggestions", json={"count": 2}, headers={"Idempotency-Key": "used"}).json()
    asks = [
        SuggestionRequest(),
        SuggestionRequest(3, key="used"),
        SuggestionRequest(key="fresh"),
        SuggestionRequest(2, key="used"),
        SuggestionRequest(2, client="program"),
        SuggestionRequest(),
    ]
    with unit_of_work(sessions) as session:
        user = session.scalars(select(Study.user_id)).one()
        caller = Caller(user, "admin", True, frozenset({Scope.ADMIN}), "token", {})
        given = take(UnitOfWork(session, clock()), StudyAccess(caller, study, "member"), asks)
    one, wrong, fresh, again, fewer, none = given
    assert isinstance(wrong, IdempotencyMismatch)
    assert [_numbers(answer) for answer in (one, fresh, again, fewer, none)] == [[3], [4], [1, 2], [5], []]
    assert isinstance(none, SuggestionAnswer)
    assert "The study's maximum of parallel trials" in (none.suggestions.reason or "")
    # What was answered is what was written, and each point was given once.
    trials = client.get(f"{URL}/{study}/trials").json()["items"]
    assert [(trial["number"], trial["client"]) for trial in trials] == [
        (n, "program" if n == 5 else None) for n in range(1, 6)
    ]
    points = {trial["number"]: trial["parameters"]["x"] for trial in trials}
    assert len(set(points.values())) == 5
    reported = [
        trial
        for answer in (one, fresh, fewer)
        if isinstance(answer, SuggestionAnswer)
        for trial in answer.suggestions.trials
    ]
    assert {trial.number: trial.parameters["x"] for trial in reported} == {
        number: points[number] for number in (3, 4, 5)
    }
    assert [trial["number"] for trial in used["trials"]] == [1, 2]


def _numbers(answer: Answer) -> list[int]:
    assert isinstance(answer, SuggestionAnswer)
    return [trial.number for trial in answer.suggestions.trials]


def test_an_empty_answer_does_not_use_up_its_key(client: TestClient, study_loop: StudyLoop) -> None:
    study = create(client, {**OWN, "budget": {"trials": 9, "parallel": 1}})["id"]
    study_loop.reconcile(study)
    client.post(f"{URL}/{study}/suggestions").raise_for_status()
    key = {"Idempotency-Key": "once"}
    assert client.post(f"{URL}/{study}/suggestions", headers=key).json()["trials"] == []
    client.post(f"{URL}/{study}/trials/1/complete", json={"result": {"score": 0.5}}).raise_for_status()
    study_loop.reconcile(study)
    assert [trial["number"] for trial in client.post(f"{URL}/{study}/suggestions", headers=key).json()["trials"]] == [2]


def test_a_client_that_asks_again_gets_what_it_has_still(client: TestClient, study_loop: StudyLoop) -> None:
    study = create(client, {**OWN, "budget": {"trials": 9, "parallel": 3}})["id"]
    study_loop.reconcile(study)

    def ask(name: str, count: int = 1) -> list[int]:
        answer = client.post(f"{URL}/{study}/suggestions", json={"client": name, "count": count})
        answer.raise_for_status()
        return [trial["number"] for trial in answer.json()["trials"]]

    assert ask("a") == [1]
    assert ask("b") == [2]
    assert ask("a") == [1]
    assert ask("a", 3) == [1, 3], "what it has, and what there is room for"
    client.post(f"{URL}/{study}/trials/1/complete", json={"result": {"score": 0.5}}).raise_for_status()
    study_loop.reconcile(study)
    assert ask("a") == [3]
    assert ask("c") == [4]
    assert ask("d") == []
    client.post(f"{URL}/{study}/pause").raise_for_status()
    reported = client.get(f"{URL}/{study}/trials").json()["items"]
    assert [trial["client"] for trial in reported] == ["a", "b", "a", "c"]


def test_a_trial_of_which_nothing_is_heard_is_lost_and_its_point_given_again(
    client: TestClient, study_loop: StudyLoop, clock: Any
) -> None:
    spec = {**OWN, "budget": {"trials": 9, "parallel": 2}, "lost_after": "10m", "initial": [{"x": 0.125}]}
    study = create(client, spec)["id"]
    study_loop.reconcile(study)
    client.post(f"{URL}/{study}/suggestions", json={"count": 2}).raise_for_status()
    clock.advance(400)
    alive = client.post(f"{URL}/{study}/trials/2/heartbeat")
    assert (alive.status_code, alive.json()["state"]) == (200, "running")
    clock.advance(201)
    study_loop.reconcile(study)
    lost, retained = client.get(f"{URL}/{study}/trials").json()["items"]
    assert (lost["state"], retained["state"]) == ("failed", "running")
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
    study_loop.reconcile(study)
    trials = client.post(f"{URL}/{study}/suggestions", json={"count": 2}).json()["trials"]
    assert len(trials) == 2
    assert {"x": 0.125} not in [trial["parameters"] for trial in trials]


def test_a_result_without_lost_after_may_take_most_of_a_day(
    client: TestClient, study_loop: StudyLoop, clock: Any
) -> None:
    study = create(client, OWN)["id"]
    study_loop.reconcile(study)
    client.post(f"{URL}/{study}/suggestions").raise_for_status()
    clock.advance(86_000)
    study_loop.reconcile(study)
    assert client.get(f"{URL}/{study}").json()["trials"] == {"running": 1}
    clock.advance(400)
    study_loop.reconcile(study)
    assert client.get(f"{URL}/{study}").json()["trials"] == {"failed": 1}


def test_lost_after_is_for_studies_without_a_template(client: TestClient) -> None:
    answer = client.post(URL, json={"spec": {**SPEC, "lost_after": "1h"}})
    assert answer.status_code == 422
    assert [one["path"] for one in answer.json()["errors"]] == ["lost_after"]
