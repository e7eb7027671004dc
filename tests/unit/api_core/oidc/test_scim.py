"""SCIM: Entra ID's and Okta's requests create, change and disable users and give them the roles of their groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from tests.unit.api_core.oidc.conftest import PAGE, Browser

USER = "urn:ietf:params:scim:schemas:core:2.0:User"
PATCH = "urn:ietf:params:scim:api:messages:2.0:PatchOp"


class Scim:
    """A provider's client."""

    def __init__(self, app: FastAPI, token: str) -> None:
        self.client = TestClient(app, headers={"Authorization": f"Bearer {token}"})

    def ask(self, method: str, path: str, body: Any = None, *, status: int = 200, **params: Any) -> Any:
        headers = {"Content-Type": "application/scim+json"}
        answer = self.client.request(method, f"/scim/v2{path}", json=body, headers=headers, params=params)
        assert answer.status_code == status, answer.text
        assert status == 204 or answer.headers["content-type"].startswith("application/scim+json")
        return answer.json() if answer.content else None

    def add_user(self, name: str, external_id: str, **more: Any) -> str:
        body = {"schemas": [USER], "userName": name, "externalId": external_id, "active": True, **more}
        user_id: str = self.ask("POST", "/Users", body, status=201)["id"]
        return user_id

    def patch(self, path: str, *operations: dict[str, Any], status: int = 200) -> Any:
        return self.ask("PATCH", path, {"schemas": [PATCH], "Operations": list(operations)}, status=status)


@pytest.fixture
def scim(app: FastAPI, client: TestClient, configure: Callable[..., None]) -> Scim:
    configure(scim=True)
    made = client.post("/api/v1/tokens", json={"name": "okta", "scopes": ["scim"]})
    assert made.status_code == 201, made.text
    return Scim(app, made.json()["token"])


def roles(client: TestClient) -> dict[str, str]:
    return {item["user"]: item["role"] for item in client.get("/api/v1/projects/default/members").json()["items"]}


def test_a_provisioned_user_logs_in_with_the_roles_of_its_groups(
    scim: Scim, client: TestClient, browser: Browser
) -> None:
    ann = scim.add_user("Ann@x.org", "s-1", emails=[{"value": "ann@x.org", "type": "work", "primary": True}])
    group = scim.ask("POST", "/Groups", {"displayName": "ml", "members": [{"value": ann}]}, status=201)
    assert roles(client)["ann"] == "member"
    # The groups of the login do not count: they say `ops`, which would make an admin.
    browser.provider.claims = {"sub": "s-1", "preferred_username": "Ann", "groups": ["ops"]}
    me = browser.log_in()
    assert (me["user"], me["is_admin"], me["projects"]) == ("ann", False, {"default": "member"})
    scim.patch(f"/Groups/{group['id']}", {"op": "replace", "value": {"id": group["id"], "displayName": "leads"}})
    assert roles(client)["ann"] == "admin"
    scim.patch(f"/Groups/{group['id']}", {"op": "Remove", "path": "members", "value": [{"value": ann}]})
    assert "ann" not in roles(client)


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "replace", "value": {"active": False}},  # Okta
        {"op": "Replace", "path": "active", "value": "False"},  # Entra ID
        {"op": "Replace", "path": "active", "value": False},
    ],
)
def test_a_disabled_users_tokens_and_sessions_end_and_jobs_continue(
    scim: Scim,
    app: FastAPI,
    client: TestClient,
    browser: Browser,
    submit: Callable[..., str],
    operation: dict[str, Any],
) -> None:
    ann = scim.add_user("ann@x.org", "s-1")
    scim.ask("POST", "/Groups", {"displayName": "ml", "members": [{"value": ann}]}, status=201)
    browser.log_in()
    made = browser.http.post("/api/v1/tokens", json={"name": "x"}, headers=PAGE).json()
    program = TestClient(app, headers={"Authorization": f"Bearer {made['token']}"})
    job = submit(program)
    assert scim.patch(f"/Users/{ann}", operation)["active"] is False
    assert program.get("/api/v1/me").status_code == 401
    assert browser.http.get("/api/v1/me").status_code == 401
    assert client.get(f"/api/v1/jobs/{job}").json()["state"] == "queued"
    browser.log_in(401)
    assert scim.patch(f"/Users/{ann}", {**operation, "value": True if "path" in operation else {"active": True}})[
        "active"
    ]
    assert program.get("/api/v1/me").status_code == 401  # what ended stays so
    assert browser.log_in()["projects"] == {"default": "member"}


def test_providers_find_page_replace_and_delete(scim: Scim, client: TestClient) -> None:
    ids = [scim.add_user(f"u{n}@x.org", f"e-{n}") for n in range(3)]
    found = scim.ask("GET", "/Users", filter='userName eq "U1@X.org"')
    assert (found["totalResults"], found["Resources"][0]["id"]) == (1, ids[1])
    assert scim.ask("GET", "/Users", filter='externalId eq "e-2"')["Resources"][0]["id"] == ids[2]
    assert scim.ask("GET", "/Users", filter='userName sw "u" and active eq true')["totalResults"] == 3
    page = scim.ask("GET", "/Users", startIndex="2", count="1")
    assert (page["totalResults"], page["startIndex"], [each["id"] for each in page["Resources"]]) == (3, 2, [ids[1]])
    group = scim.ask("POST", "/Groups", {"displayName": "ml", "members": [{"value": each} for each in ids]}, status=201)
    replaced = {"schemas": [USER], "userName": "bob@x.org", "externalId": "e-0", "active": True}
    assert scim.ask("PUT", f"/Users/{ids[0]}", replaced)["userName"] == "bob@x.org"
    scim.ask("DELETE", f"/Users/{ids[0]}", status=204)
    scim.ask("GET", f"/Users/{ids[0]}", status=404)
    assert len(scim.ask("GET", f"/Groups/{group['id']}")["members"]) == 2
    assert "members" not in scim.ask("GET", f"/Groups/{group['id']}", excludedAttributes="members")  # Entra ID
    users = {each["name"]: each for each in client.get("/api/v1/users").json()["items"]}
    assert users["u0"]["disabled_at"]
    assert "u0" not in roles(client)
    scim.ask("DELETE", f"/Groups/{group['id']}", status=204)
    assert "u1" not in roles(client)
    assert scim.add_user("bob@x.org", "e-0") == ids[0]  # the same person comes back


def test_errors_are_scims(scim: Scim, client: TestClient) -> None:
    scim.add_user("ann@x.org", "s-1")
    again = {"schemas": [USER], "userName": "ANN@x.org", "externalId": "s-2"}
    assert scim.ask("POST", "/Users", again, status=409)["scimType"] == "uniqueness"
    assert scim.ask("GET", "/Users", status=400, filter="userName eq")["scimType"] == "invalidFilter"
    assert "userName" in scim.ask("POST", "/Users", {"schemas": [USER]}, status=400)["detail"]
    unknown = {"displayName": "ml", "members": [{"value": "nobody"}]}
    assert "members" in scim.ask("POST", "/Groups", unknown, status=400)["detail"]
    scim.ask("GET", "/Users/none", status=404)
    assert len(scim.ask("GET", "/Users")["Resources"]) == 1


def test_an_admin_by_groups_can_be_disabled_and_a_former_admins_token_opens_nothing(
    scim: Scim, client: TestClient
) -> None:
    ann = scim.add_user("ann@x.org", "s-1")
    scim.ask("POST", "/Groups", {"displayName": "ops", "members": [{"value": ann}]}, status=201)
    assert scim.patch(f"/Users/{ann}", {"op": "replace", "path": "active", "value": False})["active"] is False
    scim.patch(f"/Users/{ann}", {"op": "replace", "path": "active", "value": True})
    assert client.patch("/api/v1/users/admin", json={"is_admin": False}).status_code == 200
    # The token's user is no admin any more, and with that the token opens nothing.
    scim.ask("GET", "/Users", status=403)


def test_a_scim_token_opens_scim_alone_and_no_other_token_opens_scim(scim: Scim, client: TestClient) -> None:
    assert scim.client.get("http://testserver/api/v1/me").status_code == 403
    refused = client.get("/scim/v2/Users")
    assert (refused.status_code, "needs a token of scope scim" in refused.json()["detail"]) == (403, True)


def test_discovery(scim: Scim) -> None:
    config = scim.ask("GET", "/ServiceProviderConfig")
    assert (config["patch"]["supported"], config["filter"]["supported"]) == (True, True)
    assert {each["id"] for each in scim.ask("GET", "/ResourceTypes")["Resources"]} == {"User", "Group"}
    assert USER in {each["id"] for each in scim.ask("GET", "/Schemas")["Resources"]}
    assert scim.ask("GET", f"/Schemas/{USER}")["name"] == "User"
    scim.ask("GET", "/ResourceTypes/none", status=404)
    scim.ask("GET", "/Devices", status=404)
    scim.ask("DELETE", "/Schemas", status=405)


def test_without_a_provider_for_scim_the_answer_says_what_to_set(
    app: FastAPI, client: TestClient, configure: Callable[..., None]
) -> None:
    configure()
    token = client.post("/api/v1/tokens", json={"name": "okta", "scopes": ["scim"]}).json()["token"]
    assert '"scim": true' in Scim(app, token).ask("GET", "/Users", status=404)["detail"]
