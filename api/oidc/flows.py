"""The two flows, without the database: authorization code with PKCE for browsers, device flow for the command line.

What a flow remembers between its requests is sealed with the platform's key and kept by the client, in a cookie or as
the device code: starting logins, which anybody may do, fills no table, and any API process may finish them.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

import httpx
from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from api.app.cache import ExpiringCache
from api.oidc.id_tokens import LoginClaims, read_claims
from api.oidc.provider_client import DEVICE_GRANT, ProviderClient, TokenError
from api.oidc.providers import OidcProvider, read_providers
from api.pages import PAGE_PATHS
from core.domain.errors import NotFound, ProviderFailed, Unauthenticated
from core.settings import Settings

LOGIN_TTL: Final = timedelta(minutes=10)  # from the start of a browser's login to its end
DEFAULT_PAGE: Final = "/jobs"
_INTERVAL_S: Final = 5.0  # RFC 8628, section 3.5, without the provider's own
_SLOW_DOWN_S: Final = 5.0
_STATES: Final = 100_000  # used ones that are remembered
_DEVICE_TTL_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class StartedLogin:
    """A browser's login between its two requests; the browser has it as a sealed cookie."""

    provider: str
    state: str
    nonce: str
    code_verifier: str
    next: str


@dataclass(frozen=True, slots=True)
class AuthorizationResponse:
    """What the provider sent the browser back with (RFC 6749, section 4.1.2; ``iss``: RFC 9207)."""

    state: str
    code: str | None = None
    iss: str | None = None
    error: str | None = None
    error_description: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceAuthorization:
    """A login by another device's browser. ``device_code``: sealed, for ``LoginFlows.poll_device``."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None
    expires_in_s: float
    interval_s: float


class LoginFlows:
    """The logins by all providers of the settings, for one event loop. ``transport``: in tests, in place of the
    network.

    Raises:
        BadSettings: a provider of the settings is wrong.
    """

    def __init__(
        self,
        settings: Settings,
        key: bytes,
        clock: Callable[[], datetime],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        providers = read_providers(settings)
        self._clients = {name: ProviderClient(found, clock, transport) for name, found in providers.items()}
        self._api_url = settings.api_url.rstrip("/")
        self._clock = clock
        derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"trainmaster.login.v1").derive(key)
        self._box = Fernet(base64.urlsafe_b64encode(derived))
        self._used_states = ExpiringCache[bool](_STATES)

    @property
    def providers(self) -> list[OidcProvider]:
        return [client.provider for client in self._clients.values()]

    def client(self, name: str) -> ProviderClient:
        """Raises ``NotFound``."""
        if name not in self._clients:
            known = ", ".join(self._clients) or "none; an administrator sets TRAINMASTER_OIDC_PROVIDERS"
            raise NotFound(f"There is no login provider {name!r}; there are: {known}.", field="provider")
        return self._clients[name]

    def redirect_uri(self, provider: str) -> str:
        """The page to which the provider sends the browser back. One for each provider: none can pass for another."""
        return f"{self._api_url}/login/{provider}"

    async def start(self, name: str, next_page: str) -> tuple[str, str]:
        """The provider's page to open, and the sealed ``StartedLogin`` for the browser's cookie.

        Raises:
            NotFound: there is no such provider.
            ProviderFailed: it cannot be reached.
        """
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        client = self.client(name)
        endpoint = (await client.metadata()).authorization_endpoint
        started = StartedLogin(
            provider=name,
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            code_verifier=secrets.token_urlsafe(48),
            next=own_page(next_page),
        )
        query = urlencode(
            {
                "response_type": "code",
                "client_id": client.provider.client_id,
                "redirect_uri": self.redirect_uri(name),
                "scope": " ".join(client.provider.scopes),
                "state": started.state,
                "nonce": started.nonce,
                "code_challenge": create_s256_code_challenge(started.code_verifier),
                "code_challenge_method": "S256",
            }
        )
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{query}", self._seal("login", asdict(started))

    async def finish(self, name: str, response: AuthorizationResponse, cookie: str) -> tuple[LoginClaims, str]:
        """The user of a browser's login, and the page to open.

        Raises:
            Unauthenticated: the login was not started in this browser, took too long, was finished before, was refused,
                or its ID token is not valid.
            Forbidden: the user may not log in here.
            ProviderFailed: the provider cannot be reached, or does not keep to the protocol.
        """
        client = self.client(name)
        opened = self._open("login", cookie, LOGIN_TTL)
        if opened is None:
            raise Unauthenticated(
                "This browser has no login in progress, or it took longer than 10 minutes: start it again, at "
                f"{self._api_url}/login."
            )
        started = StartedLogin(**opened)
        now = self._clock()
        if (
            started.provider != name
            or not hmac.compare_digest(started.state.encode(), response.state.encode())
            or self._used_states.get(started.state, now)
        ):
            raise Unauthenticated("This answer belongs to another login, or was used before; start the login again.")
        self._used_states.put(started.state, value=True, until=now + LOGIN_TTL)
        await _demand_issuer(client, response.iss)
        if response.error is not None or not response.code:
            raise _refusal(client.provider, TokenError(response.error or "no code", response.error_description or ""))
        tokens = await client.request_token(
            "authorization_code",
            code=response.code,
            redirect_uri=self.redirect_uri(name),
            code_verifier=started.code_verifier,
        )
        if isinstance(tokens, TokenError):
            raise _refusal(client.provider, tokens)
        return await read_claims(client, tokens, nonce=started.nonce, now=now), started.next

    async def start_device(self, name: str) -> DeviceAuthorization:
        """Raises like ``start``; ``ProviderFailed`` also where the provider has no device flow."""
        client = self.client(name)
        found = await client.request_device_code()
        expires_in_s = _seconds(found.get("expires_in"), _DEVICE_TTL_S)
        expires_at = (self._clock() + timedelta(seconds=expires_in_s)).timestamp()
        sealed = {"provider": name, "code": found["device_code"], "expires_at": expires_at}
        complete = found.get("verification_uri_complete")
        return DeviceAuthorization(
            device_code=self._seal("device", sealed),
            user_code=found["user_code"],
            verification_uri=_web_address(client.provider, found["verification_uri"]),
            verification_uri_complete=_web_address(client.provider, complete) if isinstance(complete, str) else None,
            expires_in_s=expires_in_s,
            interval_s=_seconds(found.get("interval"), _INTERVAL_S),
        )

    async def poll_device(self, name: str, device_code: str) -> LoginClaims | float:
        """The user who finished the login, or how many seconds to add to the interval between polls: 0 or 5.

        Raises:
            Unauthenticated: the code is not one of ``start_device``, has expired, or the user refused the login.
            Others like ``finish``.
        """
        client = self.client(name)
        opened = self._open("device", device_code, None)
        if opened is None or opened["provider"] != name:
            raise Unauthenticated("This device code is not one of this platform; start the login again.")
        if opened["expires_at"] <= self._clock().timestamp():
            raise Unauthenticated("The login took too long, its code has expired; start it again.")
        tokens = await client.request_token(DEVICE_GRANT, device_code=opened["code"])
        if not isinstance(tokens, TokenError):
            return await read_claims(client, tokens, nonce=None, now=self._clock())
        match tokens.code:
            case "authorization_pending":
                return 0.0
            case "slow_down":
                return _SLOW_DOWN_S
            case _:
                raise _refusal(client.provider, tokens)

    def _seal(self, purpose: str, value: Mapping[str, Any]) -> str:
        text = json.dumps([purpose, value]).encode()
        return self._box.encrypt_at_time(text, int(self._clock().timestamp())).decode()

    def _open(self, purpose: str, sealed: str, ttl: timedelta | None) -> dict[str, Any] | None:
        """``None``: not sealed here for this purpose, or longer ago than ``ttl``."""
        try:
            if ttl is None:
                text = self._box.decrypt(sealed.encode())
            else:
                now = int(self._clock().timestamp())
                text = self._box.decrypt_at_time(sealed.encode(), int(ttl.total_seconds()), now)
        except (InvalidToken, UnicodeEncodeError):
            return None
        sealed_purpose, value = json.loads(text)
        return value if sealed_purpose == purpose else None


def own_page(path: str) -> str:
    """``path`` if it is a page of the web application, else the first page: a login leads to no other site."""
    first = re.fullmatch(r"/([a-z-]+)(?:[/?#][^\\\s\x00-\x1f\x7f]*)?", path)
    return path if first is not None and first[1] in PAGE_PATHS and first[1] != "login" else DEFAULT_PAGE


async def _demand_issuer(client: ProviderClient, issuer: str | None) -> None:
    """RFC 9207: a response of another provider is refused (mix-up attack)."""
    if issuer is None and not (await client.metadata()).names_issuer_in_response:
        return
    if issuer != client.provider.issuer:
        raise Unauthenticated(f"This answer is not from {client.provider.title}; start the login again.")


def _refusal(provider: OidcProvider, error: TokenError) -> Unauthenticated:
    words = "".join(character if character.isprintable() else " " for character in error.description)[:200].strip()
    match error.code:
        case "access_denied":
            why = "the login was cancelled there, or you may not use this application"
        case "invalid_grant":
            why = "its answer was used before or has expired"
        case "expired_token":
            why = "the login took too long, its code has expired"
        case code:
            why = "".join(character for character in code if character.isprintable())[:100]
    more = f" ({words})" if words else ""
    return Unauthenticated(f"{provider.title} did not log you in: {why}{more}. Start the login again.")


def _web_address(provider: OidcProvider, url: str) -> str:
    """A provider's page that users are asked to open. Raises ``ProviderFailed``: it is no web address."""
    if not re.fullmatch(r"https?://[!-~]+", url):
        raise ProviderFailed(f"{provider.title} sent no web address for the login on another device.")
    return url


def _seconds(value: object, default: float) -> float:
    """A duration of the provider within reason."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return min(max(float(value), 1.0), 3600.0) if is_number else default  # type: ignore[arg-type]
