"""Requests to one provider: its discovery document and keys, cached, and its endpoints.

Network failures and broken responses are ``ProviderFailed`` with one sentence; nothing is requested before the first
login, so that a provider that is away never hinders the platform's start.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import httpx
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from api.oidc.providers import VARIABLE, OidcProvider, is_loopback, is_secure
from core.domain.errors import ProviderFailed, Unauthenticated

_CACHE_TTL: Final = timedelta(hours=1)  # of the discovery document and the keys
_TIMEOUT: Final = httpx.Timeout(10.0, connect=5.0)
_RESPONSE_LIMIT_BYTES: Final = 2**20
_MESSAGE_LIMIT: Final = 200  # characters of a provider's message
DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_OPTIONAL_ENDPOINTS: Final = ("userinfo_endpoint", "device_authorization_endpoint")


@dataclass(frozen=True, slots=True)
class ProviderMetadata:
    """What the platform uses of the discovery document (OpenID Connect Discovery 1.0, RFC 8414, RFC 8628, RFC 9207)."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None
    device_authorization_endpoint: str | None
    takes_secret_in_body: bool  # client_secret_post, and not the default, client_secret_basic
    names_issuer_in_response: bool  # authorization responses have `iss`


@dataclass(frozen=True, slots=True)
class TokenError:
    """An error response of the token endpoint (RFC 6749, section 5.2)."""

    code: str
    description: str


class ProviderClient:
    """One provider, for one event loop. ``transport``: in tests, in place of the network."""

    def __init__(
        self, provider: OidcProvider, clock: Callable[[], datetime], transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.provider = provider
        self._clock = clock
        self._transport = transport
        self._ssl: ssl.SSLContext | None = None
        self._lock = asyncio.Lock()
        self._metadata: tuple[datetime, ProviderMetadata] | None = None  # with the time until which it is valid
        self._keys: tuple[datetime, KeySet] | None = None

    async def metadata(self) -> ProviderMetadata:
        """Raises ``ProviderFailed``."""
        async with self._lock:
            now = self._clock()
            if self._metadata is None or self._metadata[0] <= now:
                url = f"{self.provider.issuer.rstrip('/')}/.well-known/openid-configuration"
                self._metadata = (now + _CACHE_TTL, self._parse_metadata(url, await self._get_object(url)))
            return self._metadata[1]

    async def keys(self, *, fresh: bool = False) -> KeySet:
        """The provider's public keys. ``fresh``: not from the cache, since a token names a key that is not in it.

        Raises:
            ProviderFailed: they cannot be fetched or parsed.
        """
        url = (await self.metadata()).jwks_uri
        async with self._lock:
            now = self._clock()
            if fresh or self._keys is None or self._keys[0] <= now:
                document: Any = await self._get_object(url)
                try:
                    keys = KeySet.import_key_set(document)
                except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
                    raise self._failed(f"{url} holds no keys that can be used") from error
                self._keys = (now + _CACHE_TTL, keys)
            return self._keys[1]

    async def request_token(self, grant_type: str, **parameters: str) -> Mapping[str, Any] | TokenError:
        """The token response, or the provider's error. Raises ``ProviderFailed``, also for a refused client."""
        metadata = await self.metadata()
        status, found = await self._post(metadata.token_endpoint, {"grant_type": grant_type, **parameters}, metadata)
        if status == 200 and "error" not in found:
            return found
        error = self._error_in(found, status)
        if error.code in ("invalid_client", "unauthorized_client", "unsupported_grant_type"):
            raise self._failed(
                f"it refuses the platform: {_worded(error)}. An administrator compares client_id and client_secret in "
                f"{VARIABLE}, and the client's grant types at the provider"
            )
        return error

    async def request_device_code(self) -> Mapping[str, Any]:
        """The device authorization response (RFC 8628, section 3.2). Raises ``ProviderFailed``."""
        metadata = await self.metadata()
        if metadata.device_authorization_endpoint is None:
            raise self._failed(
                "it has no device flow; log in with a browser, and create a token there or by `trainmaster login "
                "--link`"
            )
        data = {"scope": " ".join(self.provider.scopes)}
        status, found = await self._post(metadata.device_authorization_endpoint, data, metadata)
        if status != 200:
            raise self._failed(f"it refuses a device login: {_worded(self._error_in(found, status))}")
        wanted = ("device_code", "user_code", "verification_uri")
        if not all(isinstance(found.get(name), str) and found[name] for name in wanted):
            raise self._failed(f"its device authorization response lacks one of {', '.join(wanted)}")
        return found

    async def user_info(self, access_token: str, subject: str) -> Mapping[str, Any]:
        """Claims of the user ``subject``; empty if the provider has no such endpoint.

        Raises:
            Unauthenticated: they are of another user.
            ProviderFailed: no usable response.
        """
        url = (await self.metadata()).userinfo_endpoint
        if url is None:
            return {}
        claims = await self._get_object(url, {"Authorization": f"Bearer {access_token}"})
        if claims.get("sub") != subject:
            raise Unauthenticated(f"{self.provider.title} described another user than the one who logged in.")
        return claims

    def _parse_metadata(self, url: str, document: Mapping[str, Any]) -> ProviderMetadata:
        issuer = document.get("issuer")
        if issuer != self.provider.issuer:
            raise self._failed(
                f"{url} is of the issuer {str(issuer)[:_MESSAGE_LIMIT]!r}; an administrator writes exactly that as "
                f"issuer in {VARIABLE}, if it is meant"
            )
        found: dict[str, str | None] = {}
        for name in (*_ENDPOINTS, *_OPTIONAL_ENDPOINTS):
            value = document.get(name)
            if value is None and name in _OPTIONAL_ENDPOINTS:
                found[name] = None
            elif isinstance(value, str) and is_secure(value):
                found[name] = value
            else:
                raise self._failed(f"{url} has no https address as {name}")
        methods = document.get("token_endpoint_auth_methods_supported")
        is_post = isinstance(methods, list) and "client_secret_basic" not in methods and "client_secret_post" in methods
        names_issuer = document.get("authorization_response_iss_parameter_supported") is True
        return ProviderMetadata(
            authorization_endpoint=found["authorization_endpoint"] or "",
            token_endpoint=found["token_endpoint"] or "",
            jwks_uri=found["jwks_uri"] or "",
            userinfo_endpoint=found["userinfo_endpoint"],
            device_authorization_endpoint=found["device_authorization_endpoint"],
            takes_secret_in_body=is_post,
            names_issuer_in_response=names_issuer,
        )

    async def _post(
        self, url: str, data: Mapping[str, str], metadata: ProviderMetadata
    ) -> tuple[int, Mapping[str, Any]]:
        """The status and the JSON object of a request that authenticates the platform as the client."""
        secret = self.provider.client_secret
        body = {**data, "client_id": self.provider.client_id}
        headers = {"Accept": "application/json"}
        auth: httpx.BasicAuth | None = None
        if secret is not None and metadata.takes_secret_in_body:
            body["client_secret"] = secret.get_secret_value()
        elif secret is not None:
            # RFC 6749, section 2.3.1: both are form-encoded first. Authlib's ClientAuth leaves that out.
            auth = httpx.BasicAuth(quote(self.provider.client_id, safe=""), quote(secret.get_secret_value(), safe=""))
        return await self._send("POST", url, headers, data=body, auth=auth)

    async def _get_object(self, url: str, headers: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        status, found = await self._send("GET", url, {"Accept": "application/json", **(headers or {})})
        if status != 200:
            raise self._failed(f"{url} answered {status}")
        return found

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], **more: Any
    ) -> tuple[int, Mapping[str, Any]]:
        if self._ssl is None and self._transport is None:
            # Reading the system's certificates takes tens of milliseconds.
            self._ssl = await asyncio.to_thread(httpx.create_ssl_context)
        options: dict[str, Any] = {
            "verify": self._ssl if self._ssl is not None else False,  # False: with a transport, which ignores it
            "trust_env": not is_loopback(url),  # the environment's proxies
        }
        try:
            async with (
                httpx.AsyncClient(timeout=_TIMEOUT, transport=self._transport, **options) as http,
                http.stream(method, url, headers=dict(headers), **more) as response,
            ):
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > _RESPONSE_LIMIT_BYTES:
                        raise self._failed(f"{url} answered with more than {_RESPONSE_LIMIT_BYTES} bytes")
        except httpx.TimeoutException as error:
            raise self._failed(f"{url} did not answer in time; try again") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._failed(f"{url} cannot be reached ({_printable(str(error) or type(error).__name__)})") from error
        try:
            found = json.loads(bytes(body))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._failed(f"{url} answered {response.status_code} without a JSON object")
        return response.status_code, found

    def _error_in(self, found: Mapping[str, Any], status: int) -> TokenError:
        code = _printable(str(found.get("error", f"status {status}")))
        return TokenError(code, _printable(str(found.get("error_description", ""))))

    def _failed(self, why: str) -> ProviderFailed:
        return ProviderFailed(f"The login by {self.provider.title} does not work: {why}.")


def _worded(error: TokenError) -> str:
    return f"{error.code} ({error.description})" if error.description else error.code


def _printable(text: str) -> str:
    """A provider's message without line breaks and control characters, and not too long."""
    return "".join(character if character.isprintable() else " " for character in text)[:_MESSAGE_LIMIT]
