"""Users, memberships and administrators by identities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from api.oidc import provisioning
from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Event, Membership, User
from tests.unit.api_core.oidc.conftest import ISSUER, Browser, ScriptedProvider


def roles(client: TestClient) -> dict[str, str]:
    return {item["user"]: item["role"] for item in client.get("/api/v1/projects/default/members").json()["items"]}


def test_groups_give_change_and_take_roles(browser: Browser, provider: ScriptedProvider, client: TestClient) -> None:
    for groups, role in [(["ml"], "member"), (["leads", "ml"], "admin"), (["ml", "x"], "member"), ([], None)]:
        provider.claims["groups"] = groups
        answer = browser.log_in()
        assert answer["projects"] == ({} if role is None else {"default": role})
        assert roles(client).get("ann") == role
    kinds = [event["kind"] for event in client.get("/api/v1/events").json()["items"] if "member" in event["kind"]]
    assert sorted(kinds) == ["project.member_removed", *["project.member_set"] * 3]


def test_logins_leave_roles_that_an_admin_gave(
    browser: Browser, provider: ScriptedProvider, client: TestClient
) -> None:
    browser.log_in()
    # The same role again: the admin's word now.
    client.put("/api/v1/projects/default/members/ann", json={"role": "member"})
    for groups in (["leads"], []):
        provider.claims["groups"] = groups
        assert browser.log_in()["projects"] == {"default": "member"}


def test_a_group_grants_admins_and_takes_only_what_it_gave(
    browser: Browser, provider: ScriptedProvider, client: TestClient
) -> None:
    provider.claims["groups"] = ["ops"]
    assert browser.log_in()["is_admin"] is True
    provider.claims["groups"] = []
    assert browser.log_in()["is_admin"] is False
    assert client.patch("/api/v1/users/ann", json={"is_admin": True}).status_code == 200
    for groups in (["ops"], []):
        provider.claims["groups"] = groups
        assert browser.log_in()["is_admin"] is True


def test_the_last_platform_admin_stays_one(browser: Browser, provider: ScriptedProvider, client: TestClient) -> None:
    provider.claims["groups"] = ["ops"]
    browser.log_in()
    assert client.patch("/api/v1/users/admin", json={"is_admin": False}).status_code == 200
    provider.claims["groups"] = []
    assert browser.log_in()["is_admin"] is True


def test_a_sessions_rights_end_with_the_group(
    browser: Browser, open_browser: Callable[[], Browser], provider: ScriptedProvider
) -> None:
    provider.claims["groups"] = ["ops"]
    browser.log_in()
    assert browser.me()["is_admin"] is True
    provider.claims["groups"] = []
    open_browser().log_in()
    assert (browser.me()["is_admin"], browser.me()["projects"]) == (False, {})


def test_an_existing_user_is_never_taken_over(
    browser: Browser, provider: ScriptedProvider, as_user: Callable[..., TestClient], client: TestClient
) -> None:
    as_user("ann", role="admin")
    provider.claims["email"] = "admin@login.test"
    assert browser.log_in()["user"] == "ann-2"
    assert roles(client)["ann"] == "admin"
    provider.claims |= {"sub": "s-2", "preferred_username": "admin"}
    made = browser.log_in()
    assert (made["user"], made["is_admin"], made["scopes"]) == ("admin-2", False, ["read", "write"])


def test_an_admin_links_an_identity_to_an_existing_user(
    browser: Browser, provider: ScriptedProvider, as_user: Callable[..., TestClient], client: TestClient
) -> None:
    ann = as_user("ann", role=None)
    assert browser.log_in()["user"] == "ann-2"
    body = {"provider": "lab", "subject": "s-1"}
    assert ann.post("/api/v1/users/ann/identities", json=body).status_code == 403
    linked = client.post("/api/v1/users/ann/identities", json=body)
    assert linked.status_code == 201, linked.text
    assert "ann-2" not in roles(client), "what the groups gave moves"
    assert browser.log_in()["user"] == "ann"
    assert roles(client)["ann"] == "member"
    own = ann.get("/api/v1/users/ann/identities").json()["items"]
    assert [(item["issuer"], item["subject"], item["provider"]) for item in own] == [(ISSUER, "s-1", "lab")]
    assert ann.get("/api/v1/users/admin/identities").status_code == 403
    assert client.delete(f"/api/v1/users/ann/identities/{own[0]['id']}").status_code == 204
    assert "ann" not in roles(client)
    assert browser.log_in()["user"] == "ann-3"
    assert client.post("/api/v1/users/none/identities", json=body).status_code == 404
    assert client.delete("/api/v1/users/ann/identities/none").status_code == 404


def test_an_identity_before_its_first_login_can_be_linked(
    browser: Browser, as_user: Callable[..., TestClient], client: TestClient
) -> None:
    as_user("bob", role=None)
    assert client.post("/api/v1/users/bob/identities", json={"provider": "lab", "subject": "s-1"}).status_code == 201
    assert browser.log_in()["user"] == "bob"


def test_two_first_logins_at_once_make_one_user(
    browser: Browser, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser.log_in()
    find = provisioning.find_identity
    answers = iter([None])  # as if the other login were not committed yet
    monkeypatch.setattr(provisioning, "find_identity", lambda work, claims: next(answers, find(work, claims)))
    assert browser.log_in()["user"] == "ann"
    assert {user["name"] for user in client.get("/api/v1/users").json()["items"]} == {"admin", "ann"}


def test_a_name_that_another_login_takes_at_once_is_passed_over(
    browser: Browser, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser.log_in()
    provider.claims["sub"] = "s-2"
    monkeypatch.setattr(provisioning, "free_names", lambda _work, _claims: iter(["ann", "ann-7"]))
    assert browser.log_in() | {"next": ""} == browser.me() | {"next": ""}
    assert browser.me()["user"] == "ann-7"


def test_a_disabled_user_is_refused(browser: Browser, client: TestClient) -> None:
    browser.log_in()
    client.patch("/api/v1/users/ann", json={"is_disabled": True})
    assert "disabled" in browser.log_in(401)["detail"]
    client.patch("/api/v1/users/ann", json={"is_disabled": False})
    browser.log_in()


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"preferred_username": "Ann.Lee@x.org"}, "ann-lee"),
        ({"preferred_username": None, "email": "ann_lee@x.org"}, "ann-lee"),
        ({"preferred_username": "王", "email": "ann@x.org"}, "ann"),
        ({"preferred_username": "王"}, "user"),
        ({"preferred_username": "a" * 200}, "a" * 54),
        ({"preferred_username": 7}, "user"),
    ],
)
def test_names_of_users_become_valid(
    browser: Browser, provider: ScriptedProvider, claims: dict[str, Any], name: str
) -> None:
    provider.changes = claims
    assert browser.log_in()["user"] == name


@pytest.mark.parametrize(
    ("claim", "claims"),
    [
        ("groups", {"groups": "leads"}),
        ("realm_access.roles", {"realm_access": {"roles": ["leads"]}}),
        ("https://x.org/groups", {"https://x.org/groups": ["leads"]}),
    ],
)
def test_groups_are_read_where_the_settings_say(
    browser: Browser, provider: ScriptedProvider, configure: Callable[..., None], claim: str, claims: dict[str, Any]
) -> None:
    configure(groups_claim=claim)
    provider.changes = {"groups": None} | claims
    assert browser.log_in()["projects"] == {"default": "admin"}


def test_groups_may_stand_in_the_user_info_alone(browser: Browser, provider: ScriptedProvider) -> None:
    provider.changes = {"groups": None}
    provider.user_info = {"groups": ["leads"]}
    assert browser.log_in()["projects"] == {"default": "admin"}


@pytest.mark.parametrize(
    "claims", [{"groups": {"a": 1}}, {"groups": [1]}, {"groups": None, "_claim_names": {"groups": "src1"}}]
)
def test_groups_that_cannot_be_read_refuse_the_login(
    browser: Browser, provider: ScriptedProvider, claims: dict[str, Any]
) -> None:
    provider.changes = claims
    assert browser.log_in(502)["code"] == "provider_failed"


def test_what_a_login_changed_is_recorded_with_the_provider(browser: Browser, sessions: SessionFactory) -> None:
    browser.log_in()
    with unit_of_work(sessions, read_only=True) as session:
        events = session.execute(select(Event.kind, Event.actor).where(Event.actor != "user:admin")).all()
        rows = session.execute(
            select(Membership.identity_id).join(User, User.id == Membership.user_id).where(User.name == "ann")
        ).scalars()
        assert [row is not None for row in rows] == [True]
    assert {(kind, actor) for kind, actor in events} == {
        ("user.created", "provider:lab"), ("project.member_set", "provider:lab"), ("user.logged_in", "user:ann"),
    }  # fmt: skip
