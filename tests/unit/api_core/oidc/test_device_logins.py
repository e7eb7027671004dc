"""Logins of the command line by another device's browser (RFC 8628)."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.app.fair_use import TokenBuckets
from tests.unit.api_core.oidc.conftest import PAGE, Browser, ScriptedProvider


def start(browser: Browser) -> Any:
    answer = browser.http.post("/api/v1/login/providers/lab/device")
    assert answer.status_code == 201, answer.text
    return answer.json()


def poll(browser: Browser, code: str, status: int = 200) -> Any:
    answer = browser.http.post("/api/v1/login/providers/lab/token", json={"device_code": code})
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_device_login_ends_with_a_token(app: FastAPI, browser: Browser, provider: ScriptedProvider) -> None:
    started = start(browser)
    assert (started["user_code"], started["verification_uri"]) == ("ABCD-EFGH", "https://login.test/device")
    assert (started["interval_s"], started["expires_in_s"]) == (1.0, 600.0)
    for error, slow_down_s in [("authorization_pending", 0.0), ("slow_down", 5.0)]:
        provider.token_error = (400, {"error": error})
        assert poll(browser, started["device_code"]) == {"token": None, "slow_down_s": slow_down_s}
    provider.token_error = None
    made = poll(browser, started["device_code"])["token"]
    assert (made["user"], made["name"], made["scopes"]) == ("ann", "login", ["read", "write"])
    with_token = TestClient(app, headers={"Authorization": f"Bearer {made['token']}"})
    assert with_token.get("/api/v1/me").json()["projects"] == {"default": "member"}


@pytest.mark.parametrize(
    ("error", "why"), [("access_denied", "cancelled"), ("expired_token", "expired"), ("invalid_grant", "expired")]
)
def test_the_end_of_a_device_login_is_a_sentence(
    browser: Browser, provider: ScriptedProvider, error: str, why: str
) -> None:
    provider.token_error = (400, {"error": error})
    assert why in poll(browser, start(browser)["device_code"], 401)["detail"]


def test_device_codes_are_the_platforms_own_and_end(browser: Browser, clock: Any) -> None:
    assert "not one of this platform" in poll(browser, "dc", 401)["detail"]
    browser.start()
    cookie = browser.http.cookies["trainmaster_login"]
    assert "not one of this platform" in poll(browser, cookie, 401)["detail"], "sealed for another purpose"
    code = start(browser)["device_code"]
    clock.advance(601)
    assert "took too long" in poll(browser, code, 401)["detail"]


def test_a_provider_without_a_device_flow_is_a_sentence(browser: Browser, provider: ScriptedProvider) -> None:
    provider.metadata = {"device_authorization_endpoint": None}
    answer = browser.http.post("/api/v1/login/providers/lab/device")
    assert (answer.status_code, "no device flow" in answer.json()["detail"]) == (502, True)


def test_no_address_floods_a_provider(app: FastAPI, browser: Browser, provider: ScriptedProvider) -> None:
    app.state.fair_use.started_logins = TokenBuckets(2.0, 1e-6)
    statuses = [browser.http.post("/api/v1/login/providers/lab/device").status_code for _ in range(3)]
    statuses.append(browser.http.post("/api/v1/login/providers/lab", json={}, headers=PAGE).status_code)
    assert statuses == [201, 201, 429, 429]
    assert provider.requests.count("/device") == 2
