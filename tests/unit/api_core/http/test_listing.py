from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, update
from starlette.testclient import TestClient

from core.db.engine import SessionFactory, unit_of_work
from core.db.leases import TICK_DONE, mark
from core.db.tables import Job, Replica, Trial, WaitReason
from tests.databases import recorded_statements


def names(client: TestClient, **query: Any) -> list[str]:
    answer = client.get("/api/v1/jobs", params=query)
    assert answer.status_code == 200, answer.text
    return [job["name"] for job in answer.json()["items"]]


@pytest.fixture
def jobs(submit: Any) -> dict[str, str]:
    return {
        "alpha": submit(name="alpha", labels={"team": "vision", "run": "1"}),
        "beta": submit(name="beta", workers=2, ps=1, labels={"team": "vision", "run": "2"}),
        "gamma": submit(name="gamma", chief=1, labels={"team": "speech"}),
    }


def test_the_newest_come_first(client: TestClient, jobs: dict[str, str]) -> None:
    assert names(client) == ["gamma", "beta", "alpha"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"label": "team=vision"}, ["beta", "alpha"]),
        ({"label": ["team=vision", "run=2"]}, ["beta"]),
        ({"label": "run"}, ["beta", "alpha"]),
        ({"label": "run="}, []),
        ({"role": "ps"}, ["beta"]),
        ({"role": ["ps", "chief"]}, ["gamma", "beta"]),
        ({"name": "alpha"}, ["alpha"]),
        ({"name": ["al*", "gamma"]}, ["gamma", "alpha"]),
        ({"name": "al%"}, []),
        ({"search": "ET"}, ["beta"]),
        ({"search": "_"}, []),
        ({"user": "admin"}, ["gamma", "beta", "alpha"]),
        ({"user": "nobody"}, []),
        ({"project": "default"}, ["gamma", "beta", "alpha"]),
        ({"state": "queued"}, ["gamma", "beta", "alpha"]),
        ({"state": ["running", "failed"]}, []),
        ({"since": "2026-11-21T07:00:03Z"}, ["gamma"]),
        ({"until": "2026-11-21T07:00:03"}, ["beta", "alpha"]),
        ({"since": "2026-11-21T08:00:02+01:00", "until": "2026-11-21T07:00:03Z"}, ["beta"]),
        ({"limit": 1}, ["gamma"]),
    ],
)
def test_filters_choose(client: TestClient, jobs: dict[str, str], query: dict[str, Any], expected: list[str]) -> None:
    assert names(client, **query) == expected


def test_the_jobs_of_a_study_are_not_those_of_its_namesakes(
    client: TestClient,
    jobs: dict[str, str],
    submit: Any,
    set_job: Any,
    sessions: SessionFactory,
    clock: Any,
    as_user: Any,
) -> None:
    spec = {
        "name": "search",
        "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
        "metric": "score",
        "goal": "maximize",
        "budget": {"trials": 4},
    }
    older, newer = (client.post("/api/v1/studies", json={"spec": spec}).json()["id"] for _ in range(2))
    submit(name="of-neither", labels={"study": "search", "winner": "true"})
    winner = submit(name="search-best", labels={"study": "search", "trial": "2", "winner": "true"})
    set_job(winner, trial={"study_id": older, "study": "search", "number": 2, "parameters": {"x": 0.5}})
    tried = {"alpha": (older, 1), "beta": (older, 2), "gamma": (newer, 1)}
    with unit_of_work(sessions) as session:
        for name, (study, number) in tried.items():
            values = {"study_id": study, "number": number, "job_id": jobs[name], "parameters": {"x": 0.5}}
            session.execute(insert(Trial).values(**values, state="running", created_at=clock.now))
    assert names(client, study=older) == ["search-best", "beta", "alpha"]
    assert names(client, study=newer) == names(client, study="search") == ["gamma"]  # of a name, the newest
    assert names(client, study=older, label="team", limit=1) == ["beta"]
    assert names(client, study=[older, newer]) == ["search-best", "gamma", "beta", "alpha"]
    unknown = client.get("/api/v1/jobs", params={"study": "other"})
    assert (unknown.status_code, "study 'other'" in unknown.json()["detail"]) == (404, True)
    assert as_user("ann", role=None).get("/api/v1/jobs", params={"study": older}).status_code == 404


def test_an_id_is_found_by_search(client: TestClient, jobs: dict[str, str]) -> None:
    assert names(client, search=jobs["beta"]) == ["beta"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"state": "sleeping"}, "state.0"),
        ({"label": "=x"}, "label"),
        ({"limit": 0}, "limit"),
        ({"limit": 201}, "limit"),
        ({"since": "yesterday"}, "since"),
        ({"since": "0001-01-01T00:00:00+14:00"}, "since"),
        ({"colour": "red"}, "colour"),
        ({"search": "x" * 101}, "search"),
        ({"search": "a\0b"}, "search"),
        ({"study": "a\0b"}, "study"),
        ({"cursor": "not a cursor"}, "cursor"),
        ({"cursor": "WyJhIiwiYiJd"}, "cursor"),
        ({"cursor": "W10"}, "cursor"),
        ({"cursor": "x" * 600}, "cursor"),
        ({"name": ["x"] * 51}, "name"),
    ],
)
def test_a_filter_that_cannot_be_read_is_named(client: TestClient, query: dict[str, Any], field: str) -> None:
    answer = client.get("/api/v1/jobs", params=query)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_an_unknown_project_is_not_found(client: TestClient) -> None:
    assert client.get("/api/v1/jobs", params={"project": "none"}).status_code == 404
    meant = client.get("/api/v1/jobs", params={"project": "defualt"}).json()["detail"]
    assert meant == "There is no project 'defualt' that you may see. Did you mean default?"


def test_an_unknown_job_may_be_another_of_the_callers_own(client: TestClient, as_user: Any, submit: Any) -> None:
    submit(name="digits")
    assert client.get("/api/v1/jobs/digts").json()["detail"].endswith("Did you mean digits?")
    assert "mean" not in client.get("/api/v1/jobs/other").json()["detail"]
    stranger = as_user("ann", role=None)
    assert "mean" not in stranger.get("/api/v1/jobs/digts").json()["detail"]


def test_pages_hold_every_job_once_whatever_is_submitted_meanwhile(client: TestClient, submit: Any) -> None:
    made = [submit(name=f"job-{number}") for number in range(7)]
    seen: list[str] = []
    cursor = None
    while True:
        page = client.get("/api/v1/jobs", params={"limit": 3, **({"cursor": cursor} if cursor else {})}).json()
        seen += [job["id"] for job in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        submit(name="newcomer")
    assert seen == made[::-1]


def test_jobs_of_one_moment_are_paged_too(client: TestClient, clock: Any) -> None:
    made = set()
    for _ in range(5):
        answer = client.post("/api/v1/jobs", json={"spec": {"name": "same", "command": "true"}})
        made.add(answer.json()["id"])
    first = client.get("/api/v1/jobs", params={"limit": 3}).json()
    second = client.get("/api/v1/jobs", params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert {job["id"] for job in first["items"] + second["items"]} == made


def test_the_time_that_a_job_ran_leaves_out_its_pauses(
    client: TestClient, submit: Any, start: Any, end_attempt: Any, clock: Any
) -> None:
    job_id = submit()
    first = start(job_id)
    clock.advance(10)
    end_attempt(first)
    clock.advance(3 * 3600)  # paused
    start(job_id, number=2)
    clock.advance(5)
    (listed,) = client.get("/api/v1/jobs").json()["items"]
    assert listed["ran_s"] == 10
    since = datetime.fromisoformat(listed["running_since"])
    assert clock.now - since == timedelta(seconds=5)
    shown = client.get(f"/api/v1/jobs/{job_id}").json()
    assert (shown["ran_s"], shown["running_since"]) == (10, listed["running_since"])


def test_a_page_costs_the_same_few_statements_however_many_jobs(
    client: TestClient, submit: Any, start: Any, sessions: SessionFactory
) -> None:
    for number in range(12):
        start(submit(name=f"job-{number}"))
    client.get("/api/v1/jobs")
    with recorded_statements(sessions.kw["bind"]) as statements:
        assert len(names(client)) == 12
    assert len([text for text in statements if text.startswith("SELECT")]) == 2


def test_a_search_finds_values_of_labels_and_no_roles(client: TestClient, submit: Any) -> None:
    submit(name="a", labels={"team": "speech-lab"}, workers=1)
    submit(name="b", workers=1)
    assert names(client, search="SPEECH") == ["a"]
    assert names(client, search="worker") == []
    assert names(client, search="team") == []


def test_a_label_named_role_is_no_role(client: TestClient, submit: Any) -> None:
    submit(name="labelled", labels={"role": "worker", "team": "a"}, workers=1)
    submit(name="other", labels={"role": "ps"}, workers=1)
    assert names(client, role="ps") == []
    assert names(client, label="role=ps") == ["other"]
    assert names(client, label="role=worker") == ["labelled"]
    assert client.get("/api/v1/jobs/labelled").json()["labels"] == {"role": "worker", "team": "a"}


def test_a_job_that_no_scheduler_looked_at_says_so(
    client: TestClient, submit: Any, sessions: SessionFactory, clock: Any
) -> None:
    job_id = submit()
    clock.advance(11)
    reason = client.get(f"/api/v1/jobs/{job_id}").json()["wait_reason"]
    assert reason["code"] == "scheduler_away"
    assert "it has not run yet" in reason["sentence"]
    with unit_of_work(sessions) as session:
        mark(session, TICK_DONE, holder="s", now=clock.now)
    clock.advance(60)
    (listed,) = client.get("/api/v1/jobs").json()["items"]
    assert (
        f"last pass over the queue was at {clock.now - timedelta(seconds=60):%Y-%m-%d %H:%M:%S} UTC"
        in listed["wait_reason"]["sentence"]
    )


def test_a_waiting_job_tells_its_shapes_reason_and_its_own_first(
    client: TestClient, submit: Any, sessions: SessionFactory, set_job: Any, clock: Any
) -> None:
    job_id = submit()
    shape = client.get(f"/api/v1/jobs/{job_id}").json()
    assert shape["wait_reason"]["code"] == "just_queued"
    with unit_of_work(sessions) as session:
        from sqlalchemy import select

        from core.db.tables import Job

        key = session.execute(select(Job.shape).where(Job.id == job_id)).scalar_one()
        session.add(
            WaitReason(shape=key, code="no_room", sentence="No room.", numbers={"gpus": 8}, updated_at=clock.now)
        )
    job = client.get("/api/v1/jobs").json()["items"][0]
    assert job["wait_reason"] == {
        "code": "no_room",
        "sentence": "No room.",
        "numbers": {"gpus": 8},
        "is_infeasible": False,
    }
    set_job(job_id, wait_reason={"code": "backoff", "sentence": "In a moment.", "numbers": {}})
    assert client.get(f"/api/v1/jobs/{job_id}").json()["wait_reason"]["code"] == "backoff"
    set_job(job_id, state="running")
    assert client.get(f"/api/v1/jobs/{job_id}").json()["wait_reason"] is None


def test_the_queue_goes_by_priority_then_age(client: TestClient, submit: Any) -> None:
    old, young, urgent = submit(), submit(), submit(priority=90)
    positions = [client.get(f"/api/v1/jobs/{job}").json()["queue_position"] for job in (urgent, old, young)]
    assert positions == [1, 2, 3]


def test_a_job_answers_to_its_name_the_newest_of_them(client: TestClient, submit: Any) -> None:
    submit()
    newest = submit()
    assert client.get("/api/v1/jobs/digits").json()["id"] == newest


def test_an_unchanged_job_is_not_sent_again(client: TestClient, submit: Any) -> None:
    job_id = submit()
    first = client.get(f"/api/v1/jobs/{job_id}")
    again = client.get(f"/api/v1/jobs/{job_id}", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    client.post(f"/api/v1/jobs/{job_id}/pause")
    changed = client.get(f"/api/v1/jobs/{job_id}", headers={"If-None-Match": first.headers["etag"]})
    assert changed.status_code == 200


def test_a_running_job_shows_its_attempt_replicas_addresses_and_progress(
    client: TestClient, submit: Any, start: Any, sessions: SessionFactory
) -> None:
    job_id = submit(workers=2, ps=1)
    start(job_id)
    with unit_of_work(sessions) as session:
        from sqlalchemy import update

        session.execute(update(Replica).where(Replica.rank == 0).values(progress={"step": 3, "steps": 9}))
    progress = {"step": 3, "steps": 9, "fraction": 1 / 3}
    job = client.get(f"/api/v1/jobs/{job_id}").json()
    assert job["progress"] == progress
    assert [replica["address"] for replica in job["attempt"]["replicas"]] == [
        f"127.0.0.1:{20000 + n}" for n in range(3)
    ]
    ranks = {(replica["role"], replica["index"]): replica["rank"] for replica in job["attempt"]["replicas"]}
    assert ranks == {("worker", 0): 0, ("worker", 1): 1, ("ps", 0): None}
    assert client.get(f"/api/v1/jobs/{job_id}/attempts/1/replicas/ps-0").json()["rank"] is None
    assert client.get("/api/v1/jobs").json()["items"][0]["progress"] == progress
    attempts = client.get(f"/api/v1/jobs/{job_id}/attempts").json()
    assert attempts == {"items": [job["attempt"]], "next_cursor": None}
    assert client.get(f"/api/v1/jobs/{job_id}/attempts/1").json() == job["attempt"]
    assert client.get(f"/api/v1/jobs/{job_id}/attempts/2").status_code == 404


def test_attempts_come_page_by_page(client: TestClient, submit: Any, start: Any) -> None:
    job_id = submit()
    for number in range(1, 6):
        start(job_id, number=number)

    def page(**query: Any) -> tuple[list[int], str | None]:
        answer = client.get(f"/api/v1/jobs/{job_id}/attempts", params=query).json()
        return [attempt["number"] for attempt in answer["items"]], answer["next_cursor"]

    assert page() == ([1, 2, 3, 4, 5], None)
    first, cursor = page(limit=2)
    second, cursor = page(limit=2, cursor=cursor)
    third = page(limit=2, cursor=cursor)
    assert (first, second, third) == ([1, 2], [3, 4], ([5], None))
    assert page(after=3) == ([4, 5], None)
    assert page(after=5) == ([], None)
    assert page(limit=5) == ([1, 2, 3, 4, 5], None)
    for query in ({"cursor": "nonsense"}, {"limit": 0}, {"limit": 201}, {"after": -1}):
        assert client.get(f"/api/v1/jobs/{job_id}/attempts", params=query).status_code in (400, 422)


def test_a_job_that_starts_tells_what_its_replicas_wait_for(
    client: TestClient, submit: Any, sessions: SessionFactory
) -> None:
    job = submit()
    reported = {"code": "starting", "sentence": "worker-0: Image nosuch:1 cannot be pulled.", "numbers": {}}
    for state, reason, shown in (
        ("starting", None, None),
        ("starting", reported, {**reported, "is_infeasible": False}),
        ("running", reported, None),
    ):
        with unit_of_work(sessions) as session:
            session.execute(update(Job).where(Job.id == job).values(state=state, wait_reason=reason))
        assert client.get("/api/v1/jobs").json()["items"][0]["wait_reason"] == shown
        assert client.get(f"/api/v1/jobs/{job}").json()["wait_reason"] == shown


@pytest.mark.parametrize(
    ("sort", "wanted"),
    [
        ("newest", ["b", "c", "a", "b", "a"]),
        ("oldest", ["a", "b", "a", "c", "b"]),
        ("name", ["a:30", "a:10", "b:50", "b:20", "c:40"]),
        ("priority", ["b:50", "c:40", "a:30", "b:20", "a:10"]),
    ],
)
def test_lists_are_sorted_and_their_pages_fit_together(
    client: TestClient, submit: Any, clock: Any, sort: str, wanted: list[str]
) -> None:
    for name, priority in (("a", 10), ("b", 20), ("a", 30), ("c", 40), ("b", 50)):
        submit(name=name, priority=priority)
        clock.advance(1)
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(5):
        query = {"sort": sort, "limit": 2, **({"cursor": cursor} if cursor else {})}
        page = client.get("/api/v1/jobs", params=query).json()
        seen += [f"{job['name']}:{job['priority']}" if ":" in wanted[0] else job["name"] for job in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == wanted


@pytest.mark.parametrize(
    ("sort", "wanted"),
    [
        ("state", ["d", "c", "b", "a"]),
        ("user", ["d", "b", "a", "c"]),
        ("started", ["b", "d", "c", "a"]),
        ("gpus", ["c", "a", "d", "b"]),
    ],
)
def test_lists_are_sorted_by_what_a_table_shows(
    client: TestClient,
    submit: Any,
    sessions: SessionFactory,
    as_user: Any,
    clock: Any,
    sort: str,
    wanted: list[str],
) -> None:
    zoe = as_user("zoe")
    ids = {
        "a": submit(name="a", workers=2, gpus=2),
        "b": submit(name="b"),
        "c": submit(by=zoe, name="c", gpus=8),
        "d": submit(name="d", gpus=1),
    }
    with unit_of_work(sessions) as session:
        for name, state, started_s in (("b", "running", 9), ("c", "queued", None), ("d", "failed", 4)):
            started_at = None if started_s is None else clock.now + timedelta(seconds=started_s)
            values = {"state": state, "started_at": started_at}
            session.execute(update(Job).where(Job.id == ids[name]).values(**values))
        session.execute(update(Job).where(Job.id == ids["a"]).values(state="succeeded"))
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(4):
        query = {"sort": sort, "limit": 1, **({"cursor": cursor} if cursor else {})}
        page = client.get("/api/v1/jobs", params=query).json()
        seen += [job["name"] for job in page["items"]]
        cursor = page["next_cursor"]
    assert (seen, cursor) == (wanted, None)


def test_a_cursor_of_another_order_is_refused(client: TestClient, submit: Any) -> None:
    for _ in range(3):
        submit()
    cursor = client.get("/api/v1/jobs", params={"limit": 1, "sort": "name"}).json()["next_cursor"]
    for sort in ("newest", "priority", "started", "gpus"):
        assert client.get("/api/v1/jobs", params={"sort": sort, "cursor": cursor}).status_code == 422
    assert client.get("/api/v1/jobs", params={"sort": "size"}).status_code == 422
