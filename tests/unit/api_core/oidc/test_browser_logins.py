"""Logins of browsers: the flow, its bonds to the browser, and the validation of ID tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from joserfc.jwk import ECKey, RSAKey

from tests.unit.api_core.oidc.conftest import ISSUER, PAGE, Browser, ScriptedProvider


def test_a_login_opens_a_session_and_leads_back_to_the_page(browser: Browser, provider: ScriptedProvider) -> None:
    assert browser.http.get("/api/v1/login/providers").json()["items"] == [{"name": "lab", "label": "The lab"}]
    assert provider.requests == [], "nothing is fetched before the first login"
    query = browser.start("/jobs/job-1?tab=logs#end")
    assert query.keys() == {
        "response_type", "client_id", "redirect_uri", "scope", "state", "nonce", "code_challenge",
        "code_challenge_method",
    }  # fmt: skip
    assert query["redirect_uri"] == "http://127.0.0.1:8765/login/lab"
    assert (query["code_challenge_method"], query["scope"]) == ("S256", "openid profile email")
    answer = browser.finish(query["state"])
    assert answer.status_code == 201, answer.text
    assert answer.json() == {
        "user": "ann", "is_admin": False, "scopes": ["read", "write"], "projects": {"default": "member"},
        "next": "/jobs/job-1?tab=logs#end",
    }  # fmt: skip
    session, state = sorted(answer.headers.get_list("set-cookie"), reverse=True)
    assert session.startswith("trainmaster_session=tms_")
    assert "HttpOnly" in session
    assert "Max-Age=2592000;" in session
    assert state.startswith('trainmaster_login="";')
    assert browser.me()["user"] == "ann"
    assert browser.http.delete("/api/v1/session", headers=PAGE).status_code == 204
    assert browser.me()["code"] == "unauthenticated"


@pytest.mark.parametrize(
    ("wanted", "page"),
    [
        ("/studies?q=a", "/studies?q=a"),
        ("https://evil.test/", "/jobs"),
        ("//evil.test/jobs", "/jobs"),
        ("/\\evil.test", "/jobs"),
        ("/jobs\\..\\evil", "/jobs"),
        ("/jobs\n", "/jobs"),
        ("/login?next=/x", "/jobs"),
        ("/api/v1/me", "/jobs"),
        ("/jobs@evil.test", "/jobs"),
    ],
)
def test_a_login_leads_to_pages_of_the_platform_alone(browser: Browser, wanted: str, page: str) -> None:
    assert browser.finish(browser.start(wanted)["state"]).json()["next"] == page


def test_a_state_is_good_once_and_in_its_own_browser_alone(
    browser: Browser, open_browser: Callable[[], Browser], clock: Any
) -> None:
    state = browser.start()["state"]
    cookie = browser.http.cookies["trainmaster_login"]
    other = open_browser()
    assert "no login in progress" in other.finish(state).json()["detail"]
    other.start()
    assert "another login" in other.finish(state).json()["detail"]
    assert "another login" in browser.finish("x").json()["detail"]
    browser.provider.nonce = browser.start()["nonce"]  # of the second login, which the next state is not of
    assert browser.finish(state).status_code == 401
    state = browser.start()["state"]
    cookie = browser.http.cookies["trainmaster_login"]
    assert browser.finish(state).status_code == 201
    browser.http.cookies.set("trainmaster_login", cookie, path="/api/v1/login/providers")
    assert "used before" in browser.finish(state).json()["detail"], "replayed with its cookie"
    state = browser.start()["state"]
    clock.advance(601)
    assert "longer than 10 minutes" in browser.finish(state).json()["detail"]


def test_other_sites_can_neither_start_nor_finish_a_login(browser: Browser) -> None:
    for path in ("", "/session"):
        answer = browser.http.post(
            f"/api/v1/login/providers/lab{path}",
            json={"state": "x"} if path else {},
            headers={"Sec-Fetch-Site": "cross-site"},
        )
        assert answer.status_code == 403
    assert browser.http.post("/api/v1/login/providers/none", json={}, headers=PAGE).status_code == 404


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"nonce": "other"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"iss": "https://other.test"}, "iss"),
        ({"iss": None}, "iss"),
        ({"aud": "other"}, "aud"),
        ({"aud": ["trainmaster", "other"]}, "azp"),
        ({"aud": ["trainmaster", "other"], "azp": "other"}, "azp"),
        ({"aud": None}, "aud"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, "exp"),
        ({"exp": "tomorrow"}, "exp"),
        ({"iat": 4_000_000_000}, "in the future"),
        ({"nbf": 4_000_000_000}, "not yet valid"),
        ({"sub": None}, "sub"),
        ({"sub": ""}, "sub"),
        ({"sub": "x" * 256}, "sub"),
        ({"sub": 7}, "sub"),
        ({"at_hash": "AAAA"}, "at_hash"),
    ],
)
def test_a_wrong_claim_refuses_the_login(
    browser: Browser, provider: ScriptedProvider, changes: dict[str, Any], why: str
) -> None:
    provider.changes = changes
    answer = browser.log_in(401)
    assert answer["code"] == "unauthenticated"
    assert why in answer["detail"]
    assert browser.me()["code"] == "unauthenticated"


def test_clocks_may_differ_by_a_minute(browser: Browser, provider: ScriptedProvider, clock: Any) -> None:
    now = int(clock.now.timestamp())
    provider.changes = {"iat": now + 55, "nbf": now + 55, "exp": now - 55}
    browser.log_in()
    provider.changes = {"exp": now - 65}
    browser.log_in(401)


def test_unsigned_tokens_and_those_signed_by_a_shared_secret_are_refused(
    browser: Browser, provider: ScriptedProvider
) -> None:
    for algorithm in ("none", "HS256"):  # the latter with the public key, which everybody has, as its secret
        provider.header = {"alg": algorithm}
        assert "algorithm" in browser.log_in(401)["detail"]
    provider.published = list(provider.keys)
    provider.keys, provider.header = [RSAKey.generate_key(2048, {"kid": "1"})], {}
    assert "bad_signature" in browser.log_in(401)["detail"], "another key of the same name"


def test_a_rotated_key_is_fetched_when_a_token_names_it(browser: Browser, provider: ScriptedProvider) -> None:
    browser.log_in()
    browser.log_in()
    assert provider.requests.count("/jwks") == 1
    provider.keys.insert(0, ECKey.generate_key("P-256", {"kid": "2", "use": "sig"}))
    browser.log_in()
    assert provider.requests.count("/jwks") == 2
    provider.published = provider.keys[1:]
    provider.keys[0] = RSAKey.generate_key(2048, {"kid": "3"})
    assert "'3'" in browser.log_in(401)["detail"], "no published key has this name"


def test_documents_are_fetched_again_after_an_hour(browser: Browser, provider: ScriptedProvider, clock: Any) -> None:
    browser.log_in()
    clock.advance(3601)
    browser.log_in()
    assert provider.requests.count("/jwks") == provider.requests.count("/.well-known/openid-configuration") == 2


def test_errors_of_the_provider_are_sentences(browser: Browser, provider: ScriptedProvider) -> None:
    state = browser.start()["state"]
    refused = browser.finish(state, error="access_denied", error_description="not\r\nyou").json()
    assert refused["detail"] == (
        "The lab did not log you in: the login was cancelled there, or you may not use this application (not  you). "
        "Start the login again."
    )
    provider.token_error = (400, {"error": "invalid_grant", "error_description": "grant request is invalid"})
    assert "used before or has expired (grant request is invalid)" in browser.log_in(401)["detail"]
    provider.token_error = (401, {"error": "invalid_client"})
    failed = browser.log_in(502)
    assert (failed["code"], "client_id and client_secret" in failed["detail"]) == ("provider_failed", True)
    assert "hush" not in failed["detail"]
    provider.token_error = (200, {"access_token": "a"})
    assert "sent no ID token" in browser.log_in(502)["detail"]


def test_a_provider_that_is_away_is_a_sentence_and_no_traceback(browser: Browser, provider: ScriptedProvider) -> None:
    provider.is_away = True
    answer = browser.http.post("/api/v1/login/providers/lab", json={}, headers=PAGE)
    assert (answer.status_code, answer.json()["code"]) == (502, "provider_failed")
    assert "cannot be reached (connection refused)" in answer.json()["detail"]
    provider.is_away = False
    browser.log_in()


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"issuer": f"{ISSUER}/"}, "is of the issuer 'https://login.test/'"),
        ({"token_endpoint": "http://login.test/token"}, "no https address as token_endpoint"),
        ({"jwks_uri": None}, "no https address as jwks_uri"),
        ({"authorization_endpoint": 7}, "no https address as authorization_endpoint"),
    ],
)
def test_a_wrong_discovery_document_is_refused(
    browser: Browser, provider: ScriptedProvider, metadata: dict[str, Any], why: str
) -> None:
    provider.metadata = metadata
    answer = browser.http.post("/api/v1/login/providers/lab", json={}, headers=PAGE)
    assert answer.status_code == 502
    assert why in answer.json()["detail"]


def test_an_answer_of_another_issuer_is_refused(browser: Browser, provider: ScriptedProvider) -> None:
    assert browser.finish(browser.start()["state"], code="c", iss="https://other.test").status_code == 401
    assert browser.finish(browser.start()["state"], code="c", iss=ISSUER).status_code == 201


def test_an_answer_without_the_issuer_that_the_provider_promises_is_refused(
    browser: Browser, provider: ScriptedProvider
) -> None:
    provider.metadata = {"authorization_response_iss_parameter_supported": True}
    assert browser.finish(browser.start()["state"], code="c").status_code == 401


def test_only_verified_addresses_of_allowed_domains_log_in(
    browser: Browser, provider: ScriptedProvider, configure: Callable[..., None]
) -> None:
    configure(allowed_domains=["Example.com"])
    for claims, status in [
        ({}, 403),
        ({"email": "ann@evil.test", "email_verified": True}, 403),
        ({"email": "ann@example.com.evil.test", "email_verified": True}, 403),
        ({"email": "ann@example.com", "email_verified": False}, 403),
        ({"email": "ann@EXAMPLE.com", "email_verified": True}, 201),
    ]:
        provider.changes = claims
        browser.log_in(status)
    provider.changes = {}
    provider.user_info = {"email": "ann@example.com", "email_verified": True}
    browser.log_in()


def test_claims_of_another_user_are_refused(browser: Browser, provider: ScriptedProvider) -> None:
    provider.changes = {"groups": None}
    provider.user_info = {"sub": "s-2", "groups": ["ops"]}
    assert "another user" in browser.log_in(401)["detail"]
