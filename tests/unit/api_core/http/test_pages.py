from __future__ import annotations

import os
import re
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import select, update
from starlette.testclient import TestClient

from api.app.factory import create_app
from core.db.bootstrap import add_login_code
from core.db.engine import SessionFactory, unit_of_work
from core.db.leases import TICK_DONE, mark
from core.db.tables import Lease, LoginCode, Node, Orphan, User
from core.settings import Settings
from core.wakeups import CeleryWakeup

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


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build of the web pages as Vite leaves it: a page, and parts that are named by their content."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>Trainmaster</title>")
    (tmp_path / "start.js").write_text("1")
    (tmp_path / "secret.txt").write_text("no part of the pages")
    for suffix, content in (("", b"plain" * 500), (".br", b"as brotli"), (".gz", b"as gzip")):
        (tmp_path / f"assets/index-abc.js{suffix}").write_bytes(content)
    monkeypatch.setattr("api.pages.WEB_BUILD", tmp_path)
    return tmp_path


def test_the_printed_link_is_the_application_and_spends_nothing(stranger: TestClient, code: str, build: Path) -> None:
    page = stranger.get("/login", params={"code": code})
    assert page.status_code == 200
    assert "set-cookie" not in page.headers
    assert stranger.post("/api/v1/session", json={"code": code}, headers=PAGE).status_code == 201


def test_a_code_opens_a_session_once_and_the_answer_has_no_token(app: FastAPI, code: str) -> None:
    browser = TestClient(app)
    assert browser.post("/api/v1/session", json={"code": code}).status_code == 403  # from no page of ours: not spent
    answer = browser.post("/api/v1/session", json={"code": code}, headers=PAGE)
    assert answer.status_code == 201
    assert (answer.json()["user"], answer.headers["cache-control"]) == ("admin", "no-store")
    assert "tm_" not in answer.text
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert browser.get("/api/v1/me").json()["user"] == "admin"
    again = TestClient(app).post("/api/v1/session", json={"code": code}, headers=PAGE)
    assert again.status_code == 401
    assert "already used" in again.json()["detail"]


def test_a_session_for_a_token_has_a_token_of_its_own_which_its_end_revokes(
    app: FastAPI, admin_token: str, client: TestClient
) -> None:
    browser = TestClient(app)
    answer = browser.post("/api/v1/session", json={"token": f" {admin_token} "}, headers=PAGE)
    assert answer.status_code == 201
    assert admin_token not in answer.headers["set-cookie"]
    assert browser.delete("/api/v1/session").status_code == 403
    cookie = browser.cookies["trainmaster_session"]
    assert browser.delete("/api/v1/session", headers=PAGE).status_code == 204
    assert TestClient(app, cookies={"trainmaster_session": cookie}).get("/api/v1/me").status_code == 401
    assert client.delete("/api/v1/session").status_code == 204  # a program's token goes on
    assert client.get("/api/v1/me").status_code == 200


def test_a_session_is_no_bearer_token_and_a_token_no_session(app: FastAPI, admin_token: str, code: str) -> None:
    browser = TestClient(app)
    assert browser.post("/api/v1/session", json={"code": code}, headers=PAGE).status_code == 201
    cookie = browser.cookies["trainmaster_session"]
    assert browser.get("/api/v1/me").status_code == 200
    program = TestClient(app, headers={"Authorization": f"Bearer {cookie}"})
    refused = program.get("/api/v1/me")
    assert (refused.status_code, "cookie alone" in refused.json()["detail"]) == (401, True)
    again = TestClient(app).post("/api/v1/session", json={"token": cookie}, headers=PAGE)
    assert (again.status_code, "opens no other" in again.json()["detail"]) == (401, True)
    assert TestClient(app, cookies={"trainmaster_session": admin_token}).get("/api/v1/me").status_code == 401


def test_a_session_ends_with_the_token_that_opened_it(app: FastAPI, client: TestClient, clock: Any) -> None:
    def made(**more: Any) -> tuple[str, TestClient, int]:
        token = client.post("/api/v1/tokens", json={"name": "x", "scopes": ["read"], **more}).json()
        browser = TestClient(app)
        opened = browser.post("/api/v1/session", json={"token": token["token"]}, headers=PAGE)
        assert opened.status_code == 201
        return token["id"], browser, int(re.findall(r"Max-Age=(\d+)", opened.headers["set-cookie"])[0])

    revoked, one, thirty_days = made()
    _, other, a_minute = made(expires_in_s=60)
    assert (thirty_days, a_minute) == (30 * 86_400, 60)
    cookie = dict(other.cookies)
    assert one.get("/api/v1/me").status_code == 200
    assert client.delete(f"/api/v1/tokens/{revoked}").status_code == 204
    assert one.get("/api/v1/me").status_code == 401
    assert TestClient(app, cookies=cookie).get("/api/v1/me").status_code == 200
    clock.advance(61)
    assert TestClient(app, cookies=cookie).get("/api/v1/me").status_code == 401


@pytest.mark.parametrize("body", [{}, {"token": "tm_x", "code": "y"}])
def test_a_session_is_for_a_token_or_a_code(stranger: TestClient, body: dict[str, str]) -> None:
    answer = stranger.post("/api/v1/session", json=body, headers=PAGE)
    assert answer.status_code == 422
    assert "token or code" in answer.json()["detail"]


def test_a_wrong_token_opens_no_session(app: FastAPI, client: TestClient) -> None:
    answer = TestClient(app).post("/api/v1/session", json={"token": "tm_no"}, headers=PAGE)
    assert answer.status_code == 401
    assert "not known here" in answer.json()["detail"]
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("path", ["/", "/jobs", "/jobs/job-1/logs", "/cluster", "/login"])
def test_every_address_of_the_application_is_its_page(stranger: TestClient, build: Path, path: str) -> None:
    page = stranger.get(path)
    assert page.status_code == 200
    assert "<title>Trainmaster" in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["cache-control"] == "no-cache"


def test_other_addresses_stay_not_found(stranger: TestClient, build: Path) -> None:
    for path in (
        "/nothing",
        "/api/v1/nothing",
        "/assets/none.js",
        "/assets/..%2fsecret.txt",
        "/secret.txt",
        "/assets/%2e%2e",
    ):
        assert stranger.get(path).status_code == 404, path


def test_who_is_led_to_an_address_that_there_is_not_is_informed_so_on_a_page(stranger: TestClient, build: Path) -> None:
    by_a_browser = {"Sec-Fetch-Mode": "navigate", "Accept": "text/html"}
    page = stranger.get("/nothing", headers=by_a_browser)
    assert page.status_code == 404
    assert "<title>Trainmaster" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path in ("/api/v1/nothing", "/assets/none.js"):
        assert stranger.get(path, headers=by_a_browser).json()["status"] == 404


def test_parts_of_the_build_are_cached_for_ever_and_sent_as_small_as_the_browser_takes(
    stranger: TestClient, build: Path
) -> None:
    for accepted, encoding in (("br, gzip", "br"), ("gzip;q=1.0", "gzip"), ("identity", None)):
        # Only the headers: the made-up contents cannot be unpacked.
        with stranger.stream("GET", "/assets/index-abc.js", headers={"Accept-Encoding": accepted}) as answer:
            assert answer.headers.get("content-encoding") == encoding
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert answer.headers["content-type"].startswith("text/javascript")
            assert answer.headers["vary"].lower().count("accept-encoding") == 1
    assert stranger.get("/start.js").headers["cache-control"] == "no-cache"


def test_without_a_build_the_page_says_how_to_make_one(
    stranger: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.pages.WEB_BUILD", tmp_path)
    page = stranger.get("/jobs")
    assert page.status_code == 200
    assert "<code>python3 dev.py web</code> in a clone" in page.text
    assert stranger.get("/icon.svg").status_code == 404


def test_a_code_becomes_a_token_once(stranger: TestClient, code: str) -> None:
    answer = stranger.post("/api/v1/login", json={"code": code})
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    made = answer.json()
    assert (made["user"], made["scopes"]) == ("admin", ["read", "write", "admin"])
    assert stranger.get("/api/v1/me", headers={"Authorization": f"Bearer {made['token']}"}).status_code == 200
    again = stranger.post("/api/v1/login", json={"code": code})
    assert again.status_code == 401
    assert "already used" in again.json()["detail"]


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
        session.add(Orphan(attempt_id="att-a", database_id="feed", is_foreign=True, found_at=clock.now))
    health = stranger.get("/api/v1/health").json()
    assert health["status"] == "degraded"
    assert health["parts"]["executor"].startswith("has orphaned attempts: 1 of another database")
    clock.advance(120)
    assert stranger.get("/api/v1/health").json()["parts"]["scheduler"].startswith("last seen 120 s ago")
    assert stranger.get("/api/v1/ready").status_code == 200


def test_health_names_the_broker_that_is_away_and_jobs_are_still_taken(
    settings: Settings, sessions: SessionFactory, clock: Any, app: FastAPI
) -> None:
    assert app is not None  # the first start
    away = CeleryWakeup("redis://127.0.0.1:1/0")
    api = TestClient(create_app(settings, sessions=sessions, wakeup=away, clock=clock))
    health = api.get("/api/v1/health").json()
    assert health["status"] == "degraded"
    assert health["parts"]["wakeups"].startswith("Redis, the broker, does not answer; jobs are accepted")
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
    assert health["parts"]["scheduler"].startswith("fails since its last successful pass 60 s ago")
    assert "trainmaster_tick_done_age_seconds 60.0" in client.get("/metrics").text


def test_metrics_need_a_token_from_elsewhere(
    app: FastAPI, stranger: TestClient, client: TestClient, submit: Any, clock: Any
) -> None:
    submit()
    clock.advance(30)
    assert stranger.get("/metrics").status_code == 401
    for text in [client.get("/metrics").text]:
        assert 'trainmaster_jobs{state="queued"} 1.0' in text
        assert "trainmaster_queue_age_seconds 30.0" in text
        process = app.state.context.request_metrics.process
        labels = f'method="POST",operation="submit_job",process="{process}",status="201"'
        assert f"trainmaster_requests_total{{{labels}}} 1.0" in text
        assert "trainmaster_nodes" in text


def test_metrics_are_for_admins_and_for_the_token_of_the_settings(
    app: FastAPI, client: TestClient, as_user: Any, settings: Settings
) -> None:
    assert as_user("ann").get("/metrics").status_code == 403
    here = TestClient(app, client=("127.0.0.1", 5000))  # an address that jobs and proxies of this machine share
    assert here.get("/metrics").status_code == 401
    own = {"Authorization": "Bearer scraper-of-this-test"}
    assert here.get("/metrics", headers=own).status_code == 401
    scraped = create_app(settings.model_copy(update={"metrics_token": SecretStr("scraper-of-this-test")}))
    with TestClient(scraped) as there:
        assert there.get("/metrics").status_code == 401
        assert there.get("/metrics", headers={"Authorization": "Bearer another-token-here"}).status_code == 401
        for headers in (own, client.headers):
            assert "trainmaster_nodes" in there.get("/metrics", headers=headers).text
        assert there.get("/api/v1/me", headers=own).status_code == 401


def test_two_processes_counters_are_distinguished_by_whoever_asks_now_one_and_now_the_other(
    app: FastAPI, client: TestClient, settings: Settings, submit: Any
) -> None:
    submit()
    other = create_app(settings)
    other.state.context.request_metrics.process = "elsewhere:1"  # a process of its own has a name of its own
    own = app.state.context.request_metrics.process
    assert own == f"{socket.gethostname()}:{os.getpid()}"
    with TestClient(other, headers=client.headers) as there:
        for _ in range(2):
            assert there.get("/api/v1/jobs").status_code == 200
        place, texts = 'operation="list_jobs"', [client.get("/metrics").text, there.get("/metrics").text]
    counted = [
        {line for line in text.splitlines() if line.startswith("trainmaster_requests_total") and place in line}
        for text in texts
    ]
    assert counted[1] == {
        'trainmaster_requests_total{method="GET",operation="list_jobs",process="elsewhere:1",status="200"} 2.0'
    }
    assert all(f'process="{own}"' in line for line in counted[0])
    for text in texts:  # the database's are the same, whoever is asked
        assert 'trainmaster_jobs{state="queued"} 1.0' in text
        assert "# TYPE trainmaster_request_seconds histogram" in text
        assert 'trainmaster_request_seconds_bucket{le="' in text


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
    open_routes = {"get_health", "get_liveness", "get_readiness", "exchange_login", "open_session", "get_spec_schema"}
    open_routes |= {"list_login_providers", "start_provider_login", "finish_provider_login"}
    open_routes |= {"start_device_login", "poll_device_login"}
    for path, methods in app.openapi()["paths"].items():
        for method, operation in methods.items():
            if operation["operationId"] in open_routes:
                continue
            answer = stranger.request(method, re.sub(r"\{[^}]+\}", "1", path), json={})
            assert answer.status_code in (401, 422), (operation["operationId"], answer.status_code)
            if answer.status_code == 422:  # the body is read first; with a right one it would be 401
                assert method in ("post", "put", "patch"), operation["operationId"]
