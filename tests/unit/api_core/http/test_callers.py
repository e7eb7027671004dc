from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import delete, select, update
from starlette.testclient import TestClient

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Membership, Project, Token, User
from core.ids import new_id


def test_nothing_is_reported_without_a_token(stranger: TestClient) -> None:
    answer = stranger.get("/api/v1/me")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "trainmaster login" in answer.json()["detail"]


@pytest.mark.parametrize("header", ["Bearer wrong", "Bearer ", "Basic YTpi", "Bearer \xff", "", "Bearer tma_x.y"])
def test_a_header_that_proves_nobody_is_refused(stranger: TestClient, header: str) -> None:
    answer = stranger.get("/api/v1/me", headers={"Authorization": header.encode("latin-1")})
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


def test_me_tells_user_scopes_and_roles(client: TestClient, as_user: Callable[..., TestClient]) -> None:
    assert client.get("/api/v1/me").json() == {
        "user": "admin",
        "is_admin": True,
        "scopes": ["admin", "read", "write"],
        "projects": {"default": "admin"},
    }
    ann = as_user("ann", role="viewer", scopes=("read",)).get("/api/v1/me").json()
    assert ann == {"user": "ann", "is_admin": False, "scopes": ["read"], "projects": {"default": "viewer"}}


def test_an_expired_token_has_a_code_of_its_own(as_user: Callable[..., TestClient], clock: Any) -> None:
    ann = as_user("ann", ttl=timedelta(seconds=10))
    assert ann.get("/api/v1/me").status_code == 200
    clock.advance(10)
    assert ann.get("/api/v1/me").json()["code"] == "token_expired"


@pytest.mark.parametrize(
    "statement",
    [
        update(Token).values(revoked_at=Token.created_at),
        update(User).values(disabled_at=User.created_at),
        delete(Token),
    ],
)
def test_a_right_that_ends_elsewhere_ends_here_within_seconds(
    as_user: Callable[..., TestClient], sessions: SessionFactory, clock: Any, statement: Any
) -> None:
    ann = as_user("ann")
    assert ann.get("/api/v1/me").status_code == 200
    with unit_of_work(sessions) as session:
        session.execute(statement.execution_options(synchronize_session=False))
    clock.advance(3)
    assert ann.get("/api/v1/me").status_code == 401


def test_a_role_that_was_just_given_counts_at_once(
    as_user: Callable[..., TestClient], sessions: SessionFactory, submit: Any
) -> None:
    ann = as_user("ann", role=None)
    job_id = submit()
    assert ann.get(f"/api/v1/jobs/{job_id}").status_code == 404
    with unit_of_work(sessions) as session:
        user_id = session.execute(select(User.id).where(User.name == "ann")).scalar_one()
        project_id = session.execute(select(Project.id)).scalar_one()
        session.add(Membership(project_id=project_id, user_id=user_id, role="member"))
    assert ann.get(f"/api/v1/jobs/{job_id}").status_code == 200
    assert ann.post(f"/api/v1/jobs/{job_id}/cancel").status_code == 200


def test_a_lost_role_is_lost_within_seconds(
    as_user: Callable[..., TestClient], sessions: SessionFactory, submit: Any, clock: Any
) -> None:
    ann = as_user("ann")
    job_id = submit()
    assert ann.get(f"/api/v1/jobs/{job_id}").status_code == 200
    with unit_of_work(sessions) as session:
        user_id = session.execute(select(User.id).where(User.name == "ann")).scalar_one()
        session.execute(delete(Membership).where(Membership.user_id == user_id))
    clock.advance(3)
    assert ann.get(f"/api/v1/jobs/{job_id}").status_code == 404


def test_a_platform_admin_needs_the_scope_for_it(
    client: TestClient, sessions: SessionFactory, as_user: Callable[..., TestClient], submit: Any
) -> None:
    with unit_of_work(sessions) as session:
        project = Project(
            id=new_id("project"), name="other", created_at=session.execute(select(User.created_at)).scalars().first()
        )
        session.add(project)
    job_id = submit(project="other")
    assert client.get(f"/api/v1/jobs/{job_id}").status_code == 200
    modest = as_user("admin", role=None, scopes=("read", "write"))
    assert modest.get(f"/api/v1/jobs/{job_id}").status_code == 404


def test_a_cookie_changes_nothing_for_a_foreign_page(
    app: FastAPI, admin_token: str, client: TestClient, submit: Any
) -> None:
    job_id = submit()
    browser = TestClient(app)
    page = {"Sec-Fetch-Site": "same-origin"}
    assert browser.post("/api/v1/session", json={"token": admin_token}, headers=page).status_code == 201
    assert browser.get(f"/api/v1/jobs/{job_id}").status_code == 200
    verb = f"/api/v1/jobs/{job_id}/cancel"
    for headers in (
        {},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://testserver"},
    ):
        answer = browser.post(verb, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert browser.post(verb, headers={"Origin": "http://testserver"}).status_code == 200


def test_using_a_token_is_noted_now_and_then(client: TestClient, sessions: SessionFactory, clock: Any) -> None:
    def used_at() -> Any:
        with unit_of_work(sessions, read_only=True) as session:
            return session.execute(select(Token.last_used_at)).scalar_one()

    client.get("/api/v1/me")
    first = used_at()
    clock.advance(60)
    client.get("/api/v1/me")
    assert used_at() == first == clock.now - timedelta(seconds=60)
    clock.advance(600)
    client.get("/api/v1/me")
    assert used_at() == clock.now
