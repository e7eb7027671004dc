"""A provider behind httpx's transport: its documents, keys, signatures and errors are real, its network is not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from fastapi import FastAPI
from httpx import Response
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey
from pydantic import SecretStr
from starlette.testclient import TestClient

from api.oidc.flows import LoginFlows
from core.settings import Settings

ISSUER = "https://login.test"
RSA_KEY = RSAKey.generate_key(2048, {"kid": "1", "use": "sig"})
PAGE = {"Sec-Fetch-Site": "same-origin"}
SETTINGS: dict[str, Any] = {
    "name": "lab",
    "label": "The lab",
    "issuer": ISSUER,
    "client_id": "trainmaster",
    "client_secret": "hush: 100%+",
    "groups": [
        {"group": "ml", "project": "default", "role": "member"},
        {"group": "leads", "project": "default", "role": "admin"},
        {"group": "ml", "project": "no-such-project", "role": "member"},
        {"group": "ops", "is_admin": True},
    ],
}


@dataclass
class ScriptedProvider:
    """``claims``: of the user who logs in next. ``changes``: to the next ID tokens. ``token_error``: the next answer of
    the token endpoint.
    """

    clock: Any
    keys: list[Any] = field(default_factory=lambda: [RSA_KEY])
    claims: dict[str, Any] = field(
        default_factory=lambda: {"sub": "s-1", "preferred_username": "Ann", "groups": ["ml"]}
    )
    changes: dict[str, Any] = field(default_factory=dict)
    user_info: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    token_error: tuple[int, dict[str, Any]] | None = None
    is_away: bool = False
    nonce: str = ""
    challenge: str = ""
    requests: list[str] = field(default_factory=list)
    published: list[Any] | None = None  # other keys than ``keys``

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> Response:
        self.requests.append(request.url.path)
        if self.is_away:
            raise httpx.ConnectError("connection refused", request=request)
        match request.url.path:
            case "/.well-known/openid-configuration":
                return Response(200, json=self._metadata() | self.metadata)
            case "/jwks":
                return Response(200, json=KeySet(self.published or self.keys).as_dict())
            case "/token":
                return self._token(request)
            case "/me":
                assert request.headers["authorization"] == "Bearer access"
                return Response(200, json={"sub": self.claims["sub"], **self.user_info})
            case "/device":
                answer = {"device_code": "dc", "user_code": "ABCD-EFGH", "verification_uri": f"{ISSUER}/device"}
                return Response(200, json={**answer, "expires_in": 600, "interval": 1})
            case path:
                raise AssertionError(path)

    def _metadata(self) -> dict[str, Any]:
        return {
            "issuer": ISSUER,
            "authorization_endpoint": f"{ISSUER}/auth",
            "token_endpoint": f"{ISSUER}/token",
            "jwks_uri": f"{ISSUER}/jwks",
            "userinfo_endpoint": f"{ISSUER}/me",
            "device_authorization_endpoint": f"{ISSUER}/device",
        }

    def _token(self, request: httpx.Request) -> Response:
        # RFC 6749, section 2.3.1: both are form-encoded before they become a password.
        sent = base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode()
        assert sent == "trainmaster:hush%3A%20100%25%2B"
        if self.token_error is not None:
            return Response(self.token_error[0], json=self.token_error[1])
        form = {name: values[0] for name, values in parse_qs(request.content.decode()).items()}
        nonce = {}
        if form["grant_type"] == "authorization_code":
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == self.challenge
            nonce = {"nonce": self.nonce}
        return Response(200, json={"access_token": "access", "token_type": "Bearer", "id_token": self.id_token(nonce)})

    def id_token(self, nonce: dict[str, str]) -> str:
        now = int(self.clock.now.timestamp())
        claims = {"iss": ISSUER, "aud": "trainmaster", "iat": now, "exp": now + 300, **nonce, **self.claims}
        claims = {name: value for name, value in (claims | self.changes).items() if value is not None}
        key = self.keys[0]
        header = {"alg": "ES256" if isinstance(key, ECKey) else "RS256", "kid": key.kid} | self.header
        if header["alg"] in ("none", "HS256"):  # joserfc itself signs neither with a public key
            signed = ".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
            public = key.as_pem(private=False)
            mac = b"" if header["alg"] == "none" else hmac.digest(public, signed.encode(), "sha256")
            return f"{signed}.{_encoded(mac)}"
        return jwt.encode(header, claims, key, algorithms=[header["alg"]])


def _encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).decode().rstrip("=")


@pytest.fixture
def provider(clock: Any) -> ScriptedProvider:
    return ScriptedProvider(clock)


@pytest.fixture
def configure(app: FastAPI, settings: Settings, provider: ScriptedProvider, clock: Any) -> Callable[..., None]:
    """``configure(allowed_domains=["x.org"])`` lets the application use the provider with changed settings."""

    def make(**changes: Any) -> None:
        text = SecretStr(json.dumps([SETTINGS | changes]))
        with_provider = settings.model_copy(update={"oidc_providers": text})
        app.state.oidc = LoginFlows(with_provider, app.state.context.key, clock, provider.transport())

    make()
    return make


@dataclass
class Browser:
    """A browser at the platform's login page."""

    http: TestClient
    provider: ScriptedProvider

    def start(self, next_page: str | None = None) -> dict[str, str]:
        """The query of the provider's page."""
        answer = self.http.post("/api/v1/login/providers/lab", json={"next": next_page}, headers=PAGE)
        assert answer.status_code == 201, answer.text
        query = {
            name: values[0] for name, values in parse_qs(urlsplit(answer.json()["authorization_url"]).query).items()
        }
        self.provider.nonce, self.provider.challenge = query["nonce"], query["code_challenge"]
        return query

    def finish(self, state: str, **query: str) -> Response:
        body = {"state": state, **(query or {"code": "c"})}
        return self.http.post("/api/v1/login/providers/lab/session", json=body, headers=PAGE)

    def log_in(self, status: int = 201) -> Any:
        answer = self.finish(self.start()["state"])
        assert answer.status_code == status, answer.text
        return answer.json()

    def me(self) -> Any:
        return self.http.get("/api/v1/me").json()


@pytest.fixture
def open_browser(
    app: FastAPI, client: TestClient, provider: ScriptedProvider, configure: Callable[..., None]
) -> Callable[[], Browser]:
    return lambda: Browser(TestClient(app), provider)


@pytest.fixture
def browser(open_browser: Callable[[], Browser]) -> Browser:
    return open_browser()
