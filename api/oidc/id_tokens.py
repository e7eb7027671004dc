"""Validation of ID tokens (OpenID Connect Core 1.0, section 3.1.3.7), and what the platform reads from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from api.oidc.provider_client import ProviderClient
from api.oidc.providers import OidcProvider
from core.domain.errors import Forbidden, ProviderFailed, Unauthenticated

# Signatures by public keys alone: neither "none", nor HMAC, whose key an attacker could take from the public ones.
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA",
)  # fmt: skip
_LEEWAY_S: Final = 60  # between the clocks of the provider and of the platform
_SUBJECT_LIMIT: Final = 255  # of the standard
_TOKEN_LIMIT: Final = 64 * 1024  # characters


@dataclass(frozen=True, slots=True)
class LoginClaims:
    """A user as the provider describes it at a login. ``names``: wanted user names, the best first."""

    issuer: str
    subject: str
    names: tuple[str, ...]
    email: str | None
    groups: frozenset[str]


async def read_claims(
    client: ProviderClient, tokens: Mapping[str, Any], *, nonce: str | None, now: datetime
) -> LoginClaims:
    """The user of a token response.

    Args:
        nonce: of the authorization request; ``None`` in the device flow, which has none.

    Raises:
        Unauthenticated: the ID token is not valid.
        Forbidden: the user's e-mail domain is not allowed.
        ProviderFailed: the response has no ID token, or the provider's keys or claims cannot be read.
    """
    provider = client.provider
    text = tokens.get("id_token")
    if not isinstance(text, str) or len(text) > _TOKEN_LIMIT:
        raise ProviderFailed(f"{provider.title} sent no ID token; an administrator checks the client there.")
    access_token = tokens.get("access_token")
    access_token = access_token if isinstance(access_token, str) else None
    claims = await validate(client, text, nonce=nonce, access_token=access_token, now=now)
    # Providers may describe the user in the ID token or at the userinfo endpoint alone.
    wanted = ["preferred_username", "email", "email_verified"] if provider.allowed_domains else ["preferred_username"]
    lacks_groups = bool(provider.groups) and _claim(claims, provider.groups_claim) is None
    if access_token is not None and (lacks_groups or any(name not in claims for name in wanted)):
        claims = {**await client.user_info(access_token, str(claims["sub"])), **claims}
    _demand_domain(provider, claims)
    email = claims.get("email")
    email = email if isinstance(email, str) and email else None
    names = [name for name in (claims.get("preferred_username"), email) if isinstance(name, str) and name]
    return LoginClaims(
        issuer=provider.issuer,
        subject=str(claims["sub"]),
        names=tuple(name.partition("@")[0] for name in names),
        email=email,
        groups=_groups(provider, claims),
    )


async def validate(
    client: ProviderClient, text: str, *, nonce: str | None, access_token: str | None, now: datetime
) -> Mapping[str, Any]:
    """The claims of a valid ID token. Keys that it names and the cache lacks are fetched: providers rotate them.

    Raises:
        Unauthenticated: the signature or a claim is wrong.
        ProviderFailed: the keys cannot be fetched.
    """
    # Here, since it takes the API's start 50 ms, and most platforms have no provider.
    from authlib.oidc.core import CodeIDToken

    provider = client.provider
    try:
        try:
            token = _verified(text, await client.keys())
        except InvalidKeyIdError:
            token = _verified(text, await client.keys(fresh=True))
        claims = CodeIDToken(
            token.claims,
            token.header,
            options={
                "iss": {"essential": True, "value": provider.issuer},
                "aud": {"essential": True, "value": provider.client_id},
            },
            params={"client_id": provider.client_id, "nonce": nonce, "access_token": access_token},
        )
        claims.validate(now=int(now.timestamp()), leeway=_LEEWAY_S)
    # Claims of wrong types raise whatever the comparison does.
    except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unauthenticated(
            f"The ID token of {provider.title} is not valid ({_reason(error)}); start the login again. If that does "
            "not help, an administrator compares the clocks, issuer and client_id."
        ) from error
    if not 0 < len(claims["sub"]) <= _SUBJECT_LIMIT:
        raise Unauthenticated(
            f"The ID token of {provider.title} is not valid: sub has 1 to {_SUBJECT_LIMIT} characters."
        )
    return dict(claims)


def _verified(text: str, keys: KeySet) -> jwt.Token:
    return jwt.decode(text, keys, algorithms=list(ALGORITHMS))


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:_SUBJECT_LIMIT]


def _demand_domain(provider: OidcProvider, claims: Mapping[str, Any]) -> None:
    if not provider.allowed_domains:
        return
    email, verified = claims.get("email"), claims.get("email_verified")
    is_verified = verified is True or verified == "true"  # some providers send a text
    domain = email.rpartition("@")[2].lower() if isinstance(email, str) else ""
    allowed = ", ".join(provider.allowed_domains)
    if domain not in provider.allowed_domains:
        raise Forbidden(f"Only users with an e-mail address of {allowed} may log in by {provider.title}.")
    if not is_verified:
        raise Forbidden(
            f"{provider.title} has not verified your e-mail address, and only addresses of {allowed} may log in; "
            "verify it there."
        )


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    """The claim of this name, else at this path; ``None`` without one."""
    if path in claims:  # names that are URLs have dots
        return claims[path]
    found: Any = claims
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _groups(provider: OidcProvider, claims: Mapping[str, Any]) -> frozenset[str]:
    """Raises ``ProviderFailed``: the claim cannot be read. Without the claim the user is in no group."""
    if not provider.groups:
        return frozenset()
    found = _claim(claims, provider.groups_claim)
    sources = claims.get("_claim_names")
    if found is None and isinstance(sources, Mapping) and provider.groups_claim in sources:
        # Entra ID above 200 groups.
        raise ProviderFailed(
            f"{provider.title} sent no groups, but a reference to them, since they are too many; an administrator "
            "lets it send only the groups that are assigned to this application."
        )
    if found is None:
        return frozenset()
    if isinstance(found, str):
        return frozenset({found})
    if isinstance(found, list) and all(isinstance(name, str) for name in found):
        return frozenset(found)
    raise ProviderFailed(f"The claim {provider.groups_claim} of {provider.title} is no list of names of groups.")
