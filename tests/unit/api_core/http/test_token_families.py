"""What a token creates lives within it: its scopes, its expiry, its revocation."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select
from starlette.testclient import TestClient

from core.db.engine import SessionFactory, unit_of_work
from core.db.repositories.tokens import lock_parent, revoke
from core.db.tables import Token
from core.domain.errors import Unauthenticated

PAGE = {"Sec-Fetch-Site": "same-origin"}


def status_of(app: FastAPI, token: str) -> int:
    return TestClient(app).get("/api/v1/me", headers={"Authorization": f"Bearer {token}"}).status_code


def create(by: TestClient, status: int = 201, **body: Any) -> Any:
    answer = by.post("/api/v1/tokens", json={"name": "child", **body})
    assert answer.status_code == status, answer.text
    return answer.json()


def client_of(app: FastAPI, token: str) -> TestClient:
    return TestClient(app, headers={"Authorization": f"Bearer {token}"})


def test_a_token_of_twenty_seconds_creates_none_that_lives_longer(
    app: FastAPI, as_user: Callable[..., TestClient], clock: Any
) -> None:
    short = as_user("ann", ttl=timedelta(seconds=20))
    refused = create(short, 422, expires_in_s=3600)
    assert (refused["field"], "20 s" in refused["detail"]) == ("expires_in_s", True)
    child = create(short)
    assert datetime.fromisoformat(child["expires_at"]) == clock.now + timedelta(seconds=20)
    grandchild = create(client_of(app, child["token"]), expires_in_s=5)
    clock.advance(6)
    assert status_of(app, grandchild["token"]) == 401
    assert status_of(app, child["token"]) == 200
    clock.advance(15)
    assert status_of(app, child["token"]) == 401


def test_a_login_code_gives_no_more_than_the_token_that_created_it(
    app: FastAPI, stranger: TestClient, as_user: Callable[..., TestClient], clock: Any
) -> None:
    short = as_user("ann", ttl=timedelta(seconds=20))
    codes = [short.post("/api/v1/login/codes").json() for _ in range(3)]
    assert {datetime.fromisoformat(code["expires_at"]) for code in codes} == {clock.now + timedelta(seconds=20)}
    login = stranger.post("/api/v1/login", json={"code": codes[0]["code"]}).json()
    assert datetime.fromisoformat(login["expires_at"]) == clock.now + timedelta(seconds=20)
    browser = TestClient(app)
    opened = browser.post("/api/v1/session", json={"code": codes[1]["code"]}, headers=PAGE)
    assert "Max-Age=20;" in opened.headers["set-cookie"]
    clock.advance(21)
    assert status_of(app, login["token"]) == 401
    assert browser.get("/api/v1/me").status_code == 401
    assert stranger.post("/api/v1/login", json={"code": codes[2]["code"]}).status_code == 401


def test_a_login_code_gives_no_scope_that_its_token_lacks(
    stranger: TestClient, client: TestClient, as_user: Callable[..., TestClient]
) -> None:
    """Its user may become an administrator between the code's creation and its use."""
    code = as_user("ann").post("/api/v1/login/codes").json()["code"]
    assert client.patch("/api/v1/users/ann", json={"is_admin": True}).status_code == 200
    assert stranger.post("/api/v1/login", json={"code": code}).json()["scopes"] == ["read", "write"]


def test_revoking_a_token_revokes_all_that_came_of_it(
    app: FastAPI, stranger: TestClient, as_user: Callable[..., TestClient], clock: Any
) -> None:
    ann = as_user("ann")
    parent = create(ann, name="parent")
    by_parent = client_of(app, parent["token"])
    child = create(by_parent)
    assert child["parent_id"] == parent["id"]
    grandchild = create(client_of(app, child["token"]))["token"]
    codes = [by_parent.post("/api/v1/login/codes").json()["code"] for _ in range(2)]
    login = stranger.post("/api/v1/login", json={"code": codes[0]}).json()["token"]
    browser = TestClient(app)
    browser.post("/api/v1/session", json={"token": login}, headers=PAGE)
    assert browser.get("/api/v1/me").status_code == 200
    assert ann.delete(f"/api/v1/tokens/{parent['id']}").status_code == 204
    assert [status_of(app, token) for token in (parent["token"], child["token"], grandchild, login)] == [401] * 4
    assert browser.get("/api/v1/me").status_code == 401
    assert stranger.post("/api/v1/login", json={"code": codes[1]}).status_code == 401
    assert ann.get("/api/v1/me").status_code == 200


def test_a_token_can_be_replaced_without_its_children(
    app: FastAPI, stranger: TestClient, as_user: Callable[..., TestClient]
) -> None:
    ann = as_user("ann")
    top = create(ann, name="top")
    parent = create(client_of(app, top["token"]), name="parent")
    by_parent = client_of(app, parent["token"])
    child = create(by_parent)["token"]
    code = by_parent.post("/api/v1/login/codes").json()["code"]
    assert ann.delete(f"/api/v1/tokens/{parent['id']}?keep_children=true").status_code == 204
    assert (status_of(app, parent["token"]), status_of(app, child)) == (401, 200)
    login = stranger.post("/api/v1/login", json={"code": code}).json()["token"]
    assert ann.delete(f"/api/v1/tokens/{top['id']}").status_code == 204
    assert (status_of(app, child), status_of(app, login)) == (401, 401)


def test_what_a_browser_created_ends_with_its_session(app: FastAPI, as_user: Callable[..., TestClient]) -> None:
    ann = as_user("ann")
    token = create(ann)["token"]
    browser = TestClient(app)
    browser.post("/api/v1/session", json={"token": token}, headers=PAGE)
    answer = browser.post("/api/v1/tokens", json={"name": "child"}, headers=PAGE)
    assert answer.status_code == 201
    assert browser.delete("/api/v1/session", headers=PAGE).status_code == 204
    assert (status_of(app, answer.json()["token"]), status_of(app, token)) == (401, 200)


def test_a_revoked_token_gets_no_child(
    sessions: SessionFactory, as_user: Callable[..., TestClient], clock: Any
) -> None:
    """Nor at the same moment: the parent is read again, and locked, in the transaction that writes the child."""
    as_user("ann")
    with unit_of_work(sessions) as session:
        token = session.scalars(select(Token).where(Token.name == "test")).one()
        revoke(session, token, clock.now)
        with pytest.raises(Unauthenticated):
            lock_parent(session, token.id, clock.now)
