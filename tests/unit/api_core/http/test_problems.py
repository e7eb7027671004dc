from __future__ import annotations

import errno
import gzip
import json
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import text
from starlette.testclient import TestClient
from trainmaster.wire.base import Problem

from api.app.factory import create_app
from core.db.engine import SessionFactory, make_engine, make_sessions
from core.settings import Settings

JSON = {"Content-Type": "application/json"}


def problem(answer: Any) -> Problem:
    assert answer.headers["content-type"] == "application/problem+json"
    found = Problem.model_validate(answer.json())
    assert found.status == answer.status_code
    assert found.request_id == answer.headers["x-request-id"]
    assert found.detail.endswith((".", ")"))
    assert "Traceback" not in answer.text
    return found


def test_an_unknown_path_is_a_problem(client: TestClient) -> None:
    assert problem(client.get("/api/v2/jobs")).code == "not_found"


def test_a_wrong_method_says_which_is_right(client: TestClient) -> None:
    found = problem(client.put("/api/v1/jobs/x"))
    assert (found.status, found.code) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("PUT", "/api/v1/jobs", "GET, POST"), ("PATCH", "/api/v1/jobs/x", "DELETE, GET"), ("POST", "/api/v1/me", "GET")],
)
def test_all_methods_of_the_path_are_reported(client: TestClient, method: str, path: str, allowed: str) -> None:
    answer = client.request(method, path)
    assert answer.headers["allow"] == allowed
    assert problem(answer).detail.endswith(f"use {allowed}.")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 422),
        (b"nonsense", 422),
        (b'{"spec": NaN}', 422),
        (b'{"spec": {"name": "\xff\xfe"}}', 422),
        (b'{"spec": {"name": "\\ud800"}}', 422),
        (b'{"spec": {"name": "a\\u0000b", "command": "x"}}', 422),
        (b"[1, 2]", 422),
        (b"null", 422),
        (b'"text"', 422),
        (b'{"spec": ' + b"[" * 100 + b"]" * 100 + b"}", 422),
        (b'{"spec": {"name": "a", "command": "x", "env": {"A": ' + b'{"b":' * 5000 + b"1" + b"}" * 5000 + b"}}}", 422),
        (b"[" * 200_000, 422),
        (b'{"spec": {"name": "a", "command": "x", "priority": 1e400}}', 422),
        (b'{"spec": {"name": "a", "command": "x", "priority": ' + b"9" * 400 + b"}}", 422),
        (b'{"spec": {"name": "a", "command": "x"}, "spec": 1}', 422),
        (b'{"spec_text": "a: &a [*a]"}', 422),
        (b'{"spec_text": "{{{"}', 422),
        (b'{"spec": {}, "colour": 1}', 422),
    ],
)
def test_a_body_that_cannot_be_used_is_a_clear_problem(client: TestClient, body: bytes, status: int) -> None:
    assert problem(client.post("/api/v1/jobs", content=body, headers=JSON)).status == status


def test_a_body_without_its_content_type_is_a_clear_problem(client: TestClient) -> None:
    answer = client.post("/api/v1/jobs", content=b'{"spec": {}}', headers={"Content-Type": "text/plain"})
    found = problem(answer)
    assert found.status == 422
    assert "Content-Type text/plain is not JSON; send the header Content-Type: application/json" in found.detail
    bare = client.build_request("POST", "/api/v1/jobs", content=b'{"spec": {}}')
    bare.headers.pop("content-type", None)
    assert "there is no Content-Type" in problem(client.send(bare)).detail


def test_a_job_without_its_spec_around_it_is_informed_where_its_fields_go(client: TestClient) -> None:
    found = problem(client.post("/api/v1/jobs", json={"name": "digits", "command": "true", "workers": 2}))
    assert (found.status, found.field) == (422, "spec")
    assert found.detail.startswith("spec: is missing; put the fields of the job (name, command, workers) under it")
    wrong = problem(client.post("/api/v1/jobs", json={"spec": {"name": "a", "command": "x"}, "colour": 1}))
    assert wrong.field == "colour"


@pytest.mark.parametrize("streamed", [True, False])
def test_a_huge_body_is_turned_away(client: TestClient, streamed: bool) -> None:
    chunk = b" " * 2**20
    content: Any = (chunk for _ in range(6)) if streamed else chunk * 6
    found = problem(client.post("/api/v1/jobs", content=content, headers=JSON))
    assert (found.status, found.code) == (413, "payload_too_large")


def test_an_escaped_backslash_before_u0000_is_no_nul(client: TestClient) -> None:
    body = {"spec": {"name": "a", "command": ["echo", "\\u0000"]}, "dry_run": True}
    assert client.post("/api/v1/jobs", content=json.dumps(body), headers=JSON).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/jobs/%00",
        "/api/v1/jobs/%ff",
        "/api/v1/jobs/" + "x" * 101,
        "/api/v1/jobs/..%2f..%2fetc",
        "/api/v1/jobs/'%20or%201=1",
    ],
)
def test_a_strange_name_in_the_path_is_not_found_or_refused(client: TestClient, path: str) -> None:
    assert problem(client.get(path)).status in (404, 422)


@pytest.mark.parametrize(
    ("version", "status"), [("0.0.9", 426), ("0.1.0", 200), ("1.4", 200), ("none", 200), ("9" * 50, 200)]
)
def test_a_client_that_is_too_old_is_informed_how_to_renew(client: TestClient, version: str, status: int) -> None:
    answer = client.get("/api/v1/me", headers={"Trainmaster-Client": version})
    assert answer.status_code == status
    if status == 426:
        assert problem(answer).code == "client_too_old"
        assert "pip install -U trainmaster" in answer.json()["detail"]


def test_a_request_id_is_taken_over_when_it_is_one(client: TestClient) -> None:
    assert client.get("/nothing", headers={"X-Request-ID": "abc-1"}).json()["request_id"] == "abc-1"
    assert client.get("/nothing", headers={"X-Request-ID": "a b\t<"}).json()["request_id"] != "a b\t<"


def test_a_bug_shows_an_id_and_no_traceback(
    app: FastAPI, client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    def boom() -> None:
        secret = "tm_never-shown"
        raise RuntimeError("inner words" + secret[:0])

    app.add_api_route("/boom", boom)
    answer = client.get("/boom")
    found = problem(answer)
    assert (found.status, found.code) == (500, "internal")
    assert "inner words" not in answer.text
    assert found.request_id is not None
    assert found.request_id in found.detail
    logged = capsys.readouterr().out
    assert "request.failed" in logged
    assert "tm_never-shown" not in logged


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_507(app: FastAPI, client: TestClient, number: int) -> None:
    def full() -> None:
        raise OSError(number, "no")

    app.add_api_route("/full", full)
    found = problem(client.get("/full"))
    assert (found.status, found.code) == (507, "insufficient_storage")


def test_a_database_that_is_away_is_503_with_a_time_to_try_again(settings: Settings) -> None:
    engine = make_engine("postgresql://nobody@127.0.0.1:9/none")
    token = "scraper-of-this-test"
    app = create_app(settings.model_copy(update={"metrics_token": SecretStr(token)}), sessions=make_sessions(engine))
    with TestClient(app, headers={"Authorization": "Bearer tm_x"}) as away:
        answer = away.get("/api/v1/jobs")
        assert problem(answer).status == 503
        assert answer.headers["retry-after"] == "2"
        ready = away.get("/api/v1/ready")
        assert ready.status_code == 503
        assert ready.headers["retry-after"] == "2"
        assert away.get("/api/v1/live").status_code == 200
        health = away.get("/api/v1/health")
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        assert away.get("/").status_code != 500  # the pages are files: they come, and say what is away
    scraper = TestClient(app, headers={"Authorization": f"Bearer {token}"})
    metrics = scraper.get("/metrics").text
    assert "trainmaster_database_up 0.0" in metrics
    # What needs no database is there.
    for name in ("home_free_bytes", "requests_in_flight", 'requests_total{method="GET",operation="get_readiness"'):
        assert f"\ntrainmaster_{name}" in metrics


def test_prometheus_learns_that_the_database_is_away_with_an_admins_token_too(
    client: TestClient, sessions: SessionFactory, clock: Any
) -> None:
    def rename(before: str, after: str) -> None:
        with sessions() as session:
            for table in ("tokens", "leases"):
                session.execute(text(f"alter table {table}{before} rename to {table}{after}"))
            session.commit()

    assert "trainmaster_database_up 1.0" in client.get("/metrics").text
    rename("", "_away")
    try:
        clock.advance(60)  # nobody is remembered as a caller
        assert client.get("/api/v1/me").status_code == 503
        assert "trainmaster_database_up 0.0" in client.get("/metrics").text
        assert client.get("/metrics", headers={"Authorization": "Bearer tm_x"}).status_code == 503
        clock.advance(3600)
        assert client.get("/metrics").status_code == 503
    finally:
        rename("_away", "")


def test_a_database_without_tables_is_503_and_says_what_to_do(client: TestClient, sessions: SessionFactory) -> None:
    def rename(before: str, after: str) -> None:
        with sessions() as session:
            session.execute(text(f"alter table {before} rename to {after}"))
            session.commit()

    rename("wait_reasons", "gone")
    found = problem(client.get("/api/v1/jobs"))
    rename("gone", "wait_reasons")
    assert found.status == 503
    assert "migrations upgrade" in found.detail


def test_large_answers_are_pressed_and_small_ones_are_not(client: TestClient, submit: Any) -> None:
    for _ in range(5):
        submit()
    with client.stream("GET", "/api/v1/jobs", headers={"Accept-Encoding": "gzip"}) as answer:
        raw = b"".join(answer.iter_raw())
        assert answer.headers["content-encoding"] == "gzip"
        assert int(answer.headers["content-length"]) == len(raw)
        assert "Accept-Encoding" in answer.headers["vary"]
    assert len(json.loads(gzip.decompress(raw))["items"]) == 5
    assert "content-encoding" not in client.get("/api/v1/jobs", headers={"Accept-Encoding": "identity"}).headers
    assert "content-encoding" not in client.get("/api/v1/me").headers
