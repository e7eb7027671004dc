"""Studies over REST: created whole or refused with every mistake, moved as their state allows, asked and told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient
from trainmaster.wire.jobs import WaitReasonView

from api.forecasts import service
from core.db import leases
from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Event, Job, Study, Trial, WaitReason
from core.domain.studies.budget import IGNORED_FAILURES, PAUSED_AT, evaluate_budget
from core.wakeups import TOPIC_STUDY
from scheduler.control.studies.facts import load_study
from scheduler.control.studies.history import StudyHistory
from scheduler.control.studies.study_loop import StudyLoop

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


def create(client: TestClient, spec: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(URL, json={"spec": spec})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def test_a_study_is_created_and_the_scheduler_rung_for(client: TestClient, wakeup: Any) -> None:
    made = create(client, SPEC)
    assert (made["state"], made["trials"], made["spec"]["template"]["name"]) == ("running", {}, "search")
    assert wakeup.rings == [(TOPIC_STUDY, made["id"])]
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
                    study_id=study,
                    number=number,
                    state="failed",
                    parameters={"x": number},
                    memo={},
                    reason="no disk",
                    gpu_s=0.0,
                    created_at=datetime.now(UTC),
                )
            )
    assert client.post(f"{URL}/search/extend", json={"trials": 6}).json()["state"] == "running"
    with unit_of_work(sessions) as session:
        facts = load_study(session, study, datetime.now(UTC), StudyHistory())
        assert facts is not None
        assert evaluate_budget(facts.spec.budget, facts.spent).end is None
    clone = client.post(f"{URL}/search/clone", json={}).json()["id"]
    with unit_of_work(sessions) as session:
        assert IGNORED_FAILURES not in session.get_one(Study, clone).spec


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


def test_a_study_that_halves_is_learnt_from_without_the_sizes(client: TestClient, sessions: SessionFactory) -> None:
    halves = {**SPEC, "fidelity": {"parameter": "epochs", "min": 1, "max": 9}}
    study = create(client, halves)["id"]
    with unit_of_work(sessions) as session:
        for number, (epochs, score) in enumerate([(1, 0.9), (9, 0.5), (9, 0.7)], start=1):
            session.add(
                Trial(
                    study_id=study,
                    number=number,
                    state="succeeded",
                    parameters={"x": number / 10, "epochs": epochs},
                    memo={},
                    reason="",
                    gpu_s=0.0,
                    created_at=datetime.now(UTC),
                    result={"score": score},
                )
            )
    again = create(client, {**SPEC, "name": "again", "warm_start": "search"})["id"]
    with unit_of_work(sessions) as session:
        known = session.get_one(Study, again).prior_trials
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


def test_the_front_of_several_metrics_and_a_start_from_another_study(
    client: TestClient, study_loop: StudyLoop, clock: Any
) -> None:
    spec = {key: item for key, item in OWN.items() if key not in ("metric", "goal")}
    spec |= {"metrics": [{"name": "loss", "goal": "minimize"}, {"name": "speed", "goal": "maximize"}]}
    study = create(client, spec)["id"]
    for number, (loss, speed) in enumerate([(1, 1), (2, 2), (3, 1), (4, 0)], start=1):
        study_loop.reconcile(study)
        client.post(f"{URL}/{study}/suggestions").raise_for_status()
        reported = {"result": {"loss": loss, "speed": speed}}
        client.post(f"{URL}/{study}/trials/{number}/complete", json=reported).raise_for_status()
    best = client.get(f"{URL}/{study}/best").json()
    assert [trial["number"] for trial in best["trials"]] == [1, 2]
    assert client.get(URL).json()["items"][0]["front_size"] == 2
    page = client.get(f"{URL}/{study}/trials", params={"limit": 3}).json()
    rest = client.get(f"{URL}/{study}/trials", params={"cursor": page["next_cursor"]}).json()
    assert [trial["number"] for trial in page["items"] + rest["items"]] == [1, 2, 3, 4]
    clock.now += timedelta(seconds=1)
    assert client.post(URL, json={"spec": {**OWN, "warm_start": [study]}}).status_code == 422
    again = create(client, {**spec, "name": "again", "warm_start": "search"})
    study_loop.reconcile(again["id"])
    assert len(client.post(f"{URL}/again/suggestions").json()["trials"]) == 1


def test_who_has_its_name_and_goes_on_is_reported(client: TestClient, sessions: SessionFactory, clock: Any) -> None:
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


def test_why_trials_wait_is_reported(client: TestClient, sessions: SessionFactory, study_loop: StudyLoop) -> None:
    made = create(client, SPEC)
    assert made["wait_reason"] is None
    study_loop.reconcile(made["id"])
    with unit_of_work(sessions) as session:
        [shape] = set(session.scalars(select(Job.shape)))
        reason = {"code": "no_room", "sentence": "needs 8 GPUs on one node", "numbers": {}}
        session.add(WaitReason(shape=shape, updated_at=datetime.now(UTC), **reason))
    shown = client.get(f"{URL}/search").json()
    assert shown["waiting"] == 2
    assert shown["wait_reason"]["code"] == "no_room"
    assert shown["wait_reason"]["sentence"].lower().startswith("needs 8 gpus on one node")


def test_which_algorithm_auto_is_is_reported_with_the_reason(client: TestClient, study_loop: StudyLoop) -> None:
    made = create(client, {**OWN, "algorithm": "auto", "budget": {"trials": 500}})
    assert (made["algorithm"], made["algorithm_chosen"]) == ("auto", None)
    study_loop.reconcile(made["id"])
    shown = client.get(f"{URL}/{made['id']}").json()
    assert (shown["algorithm"], shown["algorithm_chosen"]) == ("auto", "tpe")
    assert "its budget has more than 250 trials" in shown["algorithm_reason"]
    chosen = create(client, {**OWN, "name": "chosen"})
    study_loop.reconcile(chosen["id"])
    assert client.get(f"{URL}/chosen").json()["algorithm_chosen"] is None


def test_mistakes_of_the_template_and_of_studies_to_start_from_are_reported_together(client: TestClient) -> None:
    spec = {**SPEC, "warm_start": ["nobody", "nowhere"], "template": {"command": "train", "input": "nowhere/x"}}
    for dry_run in (True, False):
        answer = client.post(URL, json={"spec": spec, "dry_run": dry_run})
        assert answer.status_code == 422
        reported = [one["path"] for one in answer.json()["errors"]]
        assert reported == ["warm_start[0]", "warm_start[1]", "template.input"]


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
        "search": None,
        "search-2": original["id"],
    }


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

    monkeypatch.setattr(service, "forecast", forecast)
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
    ("verb", "reported"),
    [
        ("pause", ("paused", "paused already", "is being stopped", *(f"ended ({one})." for one in _STATES[3:]))),
        ("resume", ("it runs already", "running", "then extend it", *["extend it to have more trials"] * 3)),
        ("stop", ("stopping", "stopping", "stopping", "ended (succeeded).", "ended (failed).", "cancelled")),
        ("extend", ("running", "paused", "wait for its end, then extend it", "running", "running", "running")),
        ("clone", ("running",) * 6),
    ],
)
def test_each_verb_in_each_state_moves_the_study_or_says_why_not(
    client: TestClient, sessions: SessionFactory, verb: str, reported: tuple[str, ...]
) -> None:
    body = {"extend": {"trials": 2}, "clone": {"changes": {"budget": {"trials": 2}}}}.get(verb)
    for state, words in zip(_STATES, reported, strict=True):
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
                    study_id=made,
                    number=number,
                    state="succeeded",
                    parameters={"x": 0.5},
                    memo={},
                    result={"score": 1},
                    reason="",
                    gpu_s=1_800,
                    created_at=datetime(2026, 11, 23, tzinfo=UTC),
                )
            )

    def extended(**more: Any) -> Any:
        return client.post(f"{URL}/{made}/extend", json=more)

    assert (extended(gpu_hours=1).json()["field"], extended(trials=1).json()["field"]) == ("trials", "gpu_hours")
    assert "all 2 trials are spent: the study would end again at once" in extended(parallel=3).json()["detail"]
    assert extended(trials=1, gpu_hours=1).json()["state"] == "running"


def test_a_study_begins_with_those_alone_that_have_its_aim_and_that_are_seen(client: TestClient, as_user: Any) -> None:
    create(client, OWN)
    other = {**OWN, "name": "other", "goal": "minimize", "warm_start": ["search"]}
    refused = client.post(URL, json={"spec": other})
    assert refused.json()["field"] == "warm_start[0]"
    assert "study 'search' is to maximize score, but this one is to minimize score" in refused.json()["detail"]
    client.post("/api/v1/projects", json={"name": "vision"})
    hidden = create(client, {**OWN, "name": "hidden", "project": "vision"})["id"]
    refused = as_user("ann").post(URL, json={"spec": {**OWN, "warm_start": [hidden]}})
    assert (refused.status_code, refused.json()["field"]) == (422, "warm_start[0]")
    assert f"there is no study '{hidden}' that you may see" in refused.json()["detail"]
