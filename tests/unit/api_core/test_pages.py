from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select, update
from starlette.testclient import TestClient

from api.main import create_app
from core.bell.celery import CeleryBell
from core.db.bootstrap import add_login_code
from core.db.engine import SessionFactory, unit_of_work
from core.db.leases import TICK_DONE, mark
from core.db.tables import Lease, LoginCode, Node, Stranger, User
from core.settings import Settings

PAGE = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def code(sessions: SessionFactory, client: TestClient, clock: Any) -> str:
    with unit_of_work(sessions) as session:
        user_id = session.execute(select(User.id)).scalar_one()
        return add_login_code(session, user_id, now=clock.now)


def add_node(sessions: SessionFactory, clock: Any, **changes: Any) -> None:
    values: dict[str, Any] = {
        "name": "node-1",
        "executor": "fake",
        "labels": {},
        "allocatable": {"cpu_milli": 4000, "memory_bytes": 8 * 2**30, "gpus": {"H200": 2}},
        "gpus": [],
        "is_ready": True,
        "seen_at": clock.now,
    }
    with unit_of_work(sessions) as session:
        session.add(Node(**{**values, **changes}))


def test_a_link_that_is_over_says_so_with_a_sign_and_its_commands_set_as_such(
    stranger: TestClient, code: str, clock: Any
) -> None:
    clock.advance(timedelta(hours=1).total_seconds())
    page = stranger.get("/login", params={"code": code})
    assert page.status_code == 401
    assert '<span class="bad" aria-hidden="true">!</span> This login code has expired' in page.text
    assert "`" not in page.text
    assert "<code>trainmaster" in page.text
    assert stranger.get("/icon.svg").headers["content-type"] == "image/svg+xml"
    assert "img-src 'self'" in page.headers["content-security-policy"]


def test_gangs_are_counted_as_people_do_and_what_a_job_says_stays_text(
    client: TestClient, submit: Any, set_job: Any
) -> None:
    submit(name="many", roles={"chief": 1, "worker": {"replicas": 2, "resources": {"gpus": 1}}})
    set_job(submit(name="one"), state="failed", exit={"kind": "user_error", "sentence": "`a` and `<b>`."})
    page = client.get("/").text
    assert "1 chief + 2 workers, 2 GPUs" in page
    assert "<code>a</code> and <code>&lt;b&gt;</code>." in page


def test_a_code_becomes_a_token_once(stranger: TestClient, code: str) -> None:
    answer = stranger.post("/api/v1/login", json={"code": code})
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    made = answer.json()
    assert (made["user"], made["scopes"]) == ("admin", ["read", "write", "admin"])
    assert stranger.get("/api/v1/me", headers={"Authorization": f"Bearer {made['token']}"}).status_code == 200
    again = stranger.post("/api/v1/login", json={"code": code})
    assert again.status_code == 401
    assert "used already" in again.json()["detail"]


def test_who_is_logged_in_makes_a_code_of_their_own(client: TestClient, stranger: TestClient) -> None:
    answer = client.post("/api/v1/login/codes")
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    assert answer.json()["user"] == "admin"
    assert stranger.post("/api/v1/login", json={"code": answer.json()["code"]}).json()["user"] == "admin"
    assert stranger.post("/api/v1/login/codes").status_code == 401


def test_a_code_gives_no_scope_that_its_maker_lacks(client: TestClient, stranger: TestClient) -> None:
    made = client.post("/api/v1/tokens", json={"name": "ci", "scopes": ["read", "write"]}).json()
    answer = stranger.post("/api/v1/login/codes", headers={"Authorization": f"Bearer {made['token']}"})
    assert answer.status_code == 403
    assert "scope admin" in answer.json()["detail"]


def test_a_code_is_good_for_its_time(stranger: TestClient, code: str, clock: Any) -> None:
    clock.advance(timedelta(hours=1).total_seconds())
    answer = stranger.post("/api/v1/login", json={"code": code})
    assert answer.status_code == 401
    assert "expired" in answer.json()["detail"]


def test_a_disabled_user_does_not_log_in(stranger: TestClient, code: str, sessions: SessionFactory) -> None:
    with unit_of_work(sessions) as session:
        session.execute(update(User).values(disabled_at=User.created_at))
    assert stranger.post("/api/v1/login", json={"code": code}).status_code == 401
    with unit_of_work(sessions, read_only=True) as session:  # a refused login spends nothing
        assert session.execute(select(LoginCode.used_at).where(LoginCode.used_at.is_not(None))).all() == []


def test_the_printed_link_opens_a_session(app: FastAPI, code: str) -> None:
    browser = TestClient(app)
    answer = browser.get("/login", params={"code": code}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    home = browser.get("/")
    assert "admin (platform admin)" in home.text
    assert browser.get("/api/v1/me").json()["user"] == "admin"


def test_a_spent_link_says_so_on_a_page(app: FastAPI, code: str) -> None:
    TestClient(app).get("/login", params={"code": code})
    again = TestClient(app).get("/login", params={"code": code})
    assert again.status_code == 401
    assert again.headers["content-type"].startswith("text/html")
    assert "used already" in again.text


def test_logging_in_by_token_makes_a_session_of_its_own(app: FastAPI, admin_token: str, client: TestClient) -> None:
    browser = TestClient(app)
    assert browser.post("/login", data={"token": admin_token}).status_code == 403
    answer = browser.post("/login", data={"token": admin_token}, headers=PAGE, follow_redirects=False)
    assert answer.status_code == 303
    assert admin_token not in answer.headers["set-cookie"]
    assert browser.post("/logout", follow_redirects=False).status_code == 403
    cookie = browser.cookies["trainmaster_session"]
    assert browser.post("/logout", headers=PAGE, follow_redirects=False).status_code == 303
    assert TestClient(app, cookies={"trainmaster_session": cookie}).get("/api/v1/me").status_code == 401
    assert client.get("/api/v1/me").status_code == 200


def test_a_wrong_token_is_told_on_the_page(app: FastAPI, client: TestClient) -> None:
    answer = TestClient(app).post("/login", data={"token": "tm_no"}, headers=PAGE)
    assert answer.status_code == 401
    assert "not known here" in answer.text


def test_a_visitor_sees_how_to_log_in_and_nothing_else(stranger: TestClient, submit: Any) -> None:
    submit(name="hidden-job")
    page = stranger.get("/")
    assert page.status_code == 200
    assert "trainmaster up" in page.text
    assert "hidden-job" not in page.text


def test_the_home_page_shows_jobs_and_why_they_wait(
    client: TestClient, submit: Any, sessions: SessionFactory, clock: Any
) -> None:
    add_node(sessions, clock)
    submit(name="waits")
    page = client.get("/").text
    assert "waits" in page
    assert "It has just been queued" in page
    assert "2 × H200" in page
    assert "✓ ready" in page


def test_pages_bring_everything_along_and_escape_what_users_wrote(
    client: TestClient, sessions: SessionFactory, clock: Any, submit: Any
) -> None:
    add_node(sessions, clock, name="<script>alert(1)</script>", is_ready=False, condition="<b>away</b>")
    job_id = submit()
    client.post(f"/api/v1/jobs/{job_id}/cancel", json={"reason": "<img src=x>"})
    page = client.get("/")
    assert "<script>" not in page.text
    assert "<b>away" not in page.text
    assert "<img" not in page.text
    assert not re.search(r"""(src|href)=["'](https?:)?//""", page.text)
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert client.get("/style.css").headers["content-type"].startswith("text/css")


def test_health_tells_each_part_in_words(
    stranger: TestClient, client: TestClient, sessions: SessionFactory, clock: Any
) -> None:
    health = stranger.get("/api/v1/health").json()
    assert health["status"] == "degraded"
    assert health["parts"]["database"] == "ok"
    assert "has not run yet" in health["parts"]["scheduler"]
    add_node(sessions, clock)
    with unit_of_work(sessions) as session:
        mark(session, TICK_DONE, holder="s", now=clock.now)
    assert stranger.get("/api/v1/health").json()["status"] == "ok"
    with unit_of_work(sessions) as session:
        session.add(Stranger(attempt_id="att-a", database_id="feed", is_foreign=True, since=clock.now))
    health = stranger.get("/api/v1/health").json()
    assert health["status"] == "degraded"
    assert health["parts"]["executor"].startswith("holds attempts: 1 of another database")
    clock.advance(120)
    assert stranger.get("/api/v1/health").json()["parts"]["scheduler"].startswith("last seen 120 s ago")
    assert stranger.get("/api/v1/ready").status_code == 200


def test_health_names_the_broker_that_is_away_and_jobs_are_still_taken(
    settings: Settings, sessions: SessionFactory, clock: Any, app: FastAPI
) -> None:
    assert app is not None  # the first start
    away = CeleryBell("redis://127.0.0.1:1/0")
    api = TestClient(create_app(settings, sessions=sessions, bell=away, clock=clock))
    health = api.get("/api/v1/health").json()
    assert health["status"] == "degraded"
    assert health["parts"]["bell"].startswith("Redis, the broker, does not answer; jobs are taken")
    assert api.get("/api/v1/ready").status_code == 200


def test_a_scheduler_whose_every_tick_fails_is_not_well(
    stranger: TestClient, client: TestClient, sessions: SessionFactory, clock: Any
) -> None:
    with unit_of_work(sessions) as session:
        mark(session, TICK_DONE, holder="s", now=clock.now)
    clock.advance(60)
    with unit_of_work(sessions) as session:
        session.add(Lease(name="tick", holder="s", token=1, expires_at=clock.now + timedelta(seconds=15)))
    health = stranger.get("/api/v1/health").json()
    assert health["status"] == "degraded"
    assert health["parts"]["scheduler"].startswith("fails since its last good look at the queue 60 s ago")
    assert "trainmaster_tick_done_age_seconds 60.0" in client.get("/metrics").text


def test_metrics_need_a_token_from_elsewhere(
    app: FastAPI, stranger: TestClient, client: TestClient, submit: Any, clock: Any
) -> None:
    submit()
    clock.advance(30)
    assert stranger.get("/metrics").status_code == 401
    for allowed in (client, TestClient(app, client=("127.0.0.1", 5000))):
        text = allowed.get("/metrics").text
        assert 'trainmaster_jobs{state="queued"} 1.0' in text
        assert "trainmaster_queue_age_seconds 30.0" in text
        assert 'trainmaster_requests_total{method="POST",operation="submit_job",status="201"} 1.0' in text
        assert "trainmaster_nodes" in text


def test_metrics_are_for_admins_and_for_no_one_behind_a_proxy(
    app: FastAPI, client: TestClient, as_user: Any, settings: Settings
) -> None:
    assert as_user("ann").get("/metrics").status_code == 403
    here = TestClient(app, client=("127.0.0.1", 5000))
    assert here.get("/metrics").status_code == 200
    for header in ("X-Forwarded-For", "Forwarded"):
        assert here.get("/metrics", headers={header: "127.0.0.1"}).status_code == 401
    closed = create_app(settings.model_copy(update={"metrics_open_on_loopback": False}))
    with TestClient(closed, client=("127.0.0.1", 5000)) as there:
        assert there.get("/metrics").status_code == 401
        assert there.get("/metrics", headers=client.headers).status_code == 200


def test_the_labels_of_metrics_are_bounded(client: TestClient) -> None:
    for number in range(20):
        client.get(f"/nothing/{number}")
        client.request(f"METHOD{number}", "/nothing")
    text = client.get("/metrics").text
    assert "nothing" not in text
    assert "METHOD1" not in text


def test_openapi_tells_operations_once_with_tags_and_problems(app: FastAPI, client: TestClient) -> None:
    schema = app.openapi()
    operations = [operation for path in schema["paths"].values() for operation in path.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in ids)
    for operation in operations:
        assert operation["tags"], operation["operationId"]
        assert "application/problem+json" in operation["responses"]["4XX"]["content"], operation["operationId"]
        assert operation["summary"]


def test_every_route_of_the_api_asks_who_calls(app: FastAPI, stranger: TestClient) -> None:
    """But for those that must not: health, readiness, login, and what editors fetch."""
    open_routes = {"get_health", "get_liveness", "get_readiness", "exchange_login", "get_spec_schema"}
    for path, methods in app.openapi()["paths"].items():
        for method, operation in methods.items():
            if operation["operationId"] in open_routes:
                continue
            answer = stranger.request(method, re.sub(r"\{[^}]+\}", "1", path), json={})
            assert answer.status_code in (401, 422), (operation["operationId"], answer.status_code)
            if answer.status_code == 422:  # the body is read first; with a right one it would be 401
                assert method in ("post", "put", "patch"), operation["operationId"]
