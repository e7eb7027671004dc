"""OpenID Connect providers of the settings (``TRAINMASTER_OIDC_PROVIDERS``), validated at start."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from trainmaster.spec.errors import suggest

from core.settings import BadSettings, Settings

VARIABLE: Final = "TRAINMASTER_OIDC_PROVIDERS"
ProjectRole = Literal["viewer", "member", "admin"]
ROLES: Final[tuple[ProjectRole, ...]] = ("viewer", "member", "admin")  # each includes those before it
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_EXAMPLE: Final = (
    'Write a JSON list such as [{"name": "lab", "issuer": "https://login.example.com", "client_id": "trainmaster", '
    '"client_secret_file": "/run/secrets/oidc", "groups": [{"group": "ml", "project": "vision", "role": "member"}]}], '
    "or the path of a file with it."
)


def is_secure(url: str) -> bool:
    """Whether nobody on the network can read or change what is sent to ``url``: https, or this machine."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(url)))
    except ValueError:
        return False


def is_loopback(url: str) -> bool:
    """Whether ``url``, a valid one, is of this machine."""
    return urlsplit(url).hostname in _LOOPBACK


def _issuer(url: str) -> str:
    if not is_secure(url):
        raise ValueError(f"{url!r} must begin with https:// (http:// only on this machine)")
    if "?" in url or "#" in url:
        raise ValueError("must have no query and no fragment; write it as the provider's discovery document does")
    return url


def _domain(domain: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", domain):
        raise ValueError(f"{domain!r} is not a domain; write what stands behind the @, such as example.com")
    return domain.lower()


def _scopes(scopes: tuple[str, ...]) -> tuple[str, ...]:
    if "openid" not in scopes:
        raise ValueError('must contain "openid": without it the provider sends no ID token')
    return scopes


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class GroupMapping(_Model):
    """What members of a provider's group get: a role in a project, or the rights of a platform admin."""

    group: str = Field(min_length=1)
    project: str | None = Field(default=None, min_length=1)
    role: ProjectRole | None = None
    is_admin: bool = False

    @model_validator(mode="after")
    def _is_unambiguous(self) -> Self:
        if (self.project is None) != (self.role is None):
            raise ValueError("state project and role together")
        if self.is_admin == (self.project is not None):
            raise ValueError('state either project and role, or "is_admin": true')
        return self


class OidcProvider(_Model):
    """One provider. ``label``: the name that users read. No secret: a public client, which PKCE alone protects."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")
    label: str = Field(default="", max_length=60)
    issuer: Annotated[str, AfterValidator(_issuer)]
    client_id: str = Field(min_length=1)
    client_secret: SecretStr | None = Field(default=None, min_length=1)
    client_secret_file: Path | None = None
    scopes: Annotated[tuple[str, ...], AfterValidator(_scopes)] = ("openid", "profile", "email")
    # The claim's name, or its path: realm_access.roles.
    groups_claim: str = Field(default="groups", min_length=1)
    groups: tuple[GroupMapping, ...] = ()
    # Empty: all addresses, and users without one.
    allowed_domains: tuple[Annotated[str, AfterValidator(_domain)], ...] = ()
    # Groups are read at each login, so that this bounds how long a removed member keeps a role.
    session_days: float = Field(default=30.0, gt=0, le=90)
    scim: bool = False  # it provisions users and groups by SCIM; the groups count in place of those of logins

    @model_validator(mode="after")
    def _has_unambiguous_secret(self) -> Self:
        if self.client_secret is not None and self.client_secret_file is not None:
            raise ValueError("state client_secret or client_secret_file, not both")
        return self

    @property
    def title(self) -> str:
        return self.label or self.name

    def roles_of(self, groups: Collection[str]) -> dict[str, ProjectRole]:
        """The highest role of the groups' members in each project, by the project's name."""
        roles: dict[str, ProjectRole] = {}
        for mapping in self.groups:
            if mapping.group in groups and mapping.project is not None and mapping.role is not None:
                before: ProjectRole = roles.get(mapping.project, "viewer")
                roles[mapping.project] = ROLES[max(ROLES.index(before), ROLES.index(mapping.role))]
        return roles

    def grants_admin(self, groups: Collection[str]) -> bool:
        return any(mapping.is_admin and mapping.group in groups for mapping in self.groups)

    @property
    def has_admin_groups(self) -> bool:
        return any(mapping.is_admin for mapping in self.groups)


def read_providers(settings: Settings) -> Mapping[str, OidcProvider]:
    """The providers by name, in their order, with the content of secret files; no network.

    Raises:
        BadSettings: one sentence that names each wrong field. No secret is in it.
    """
    text = settings.oidc_providers.get_secret_value().strip()
    if not text:
        return {}
    origin = VARIABLE
    if not text.startswith(("[", "{")):
        origin = f"{VARIABLE} ({text})"
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadSettings(f"{origin} cannot be read: {error}. {_EXAMPLE}") from error
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise BadSettings(f"{origin} is not JSON: {error}. {_EXAMPLE}") from None
    if not isinstance(entries, list):
        raise BadSettings(f"{origin} is not a list. {_EXAMPLE}")
    providers: dict[str, OidcProvider] = {}
    mistakes: list[str] = []
    for number, entry in enumerate(entries, 1):
        name = entry.get("name") if isinstance(entry, dict) else None
        where = f"provider {number}" + (f" ({name})" if isinstance(name, str) else "")
        try:
            provider = _with_secret(OidcProvider.model_validate_json(json.dumps(entry)))
        except ValidationError as error:
            mistakes += [f"{where}, {_mistake(each)}" for each in error.errors(include_url=False, include_input=False)]
        except _UnreadableSecret as error:
            mistakes.append(f"{where}, client_secret_file: {error}")
        else:
            if provider.name in providers:
                mistakes.append(f"{where}, name: another provider has it; each needs its own")
            providers[provider.name] = provider
    if sum(provider.scim for provider in providers.values()) > 1:
        mistakes.append("scim: more than one provider has it; one alone can provision users")
    if mistakes:
        raise BadSettings(f"{origin} cannot be used: {'; '.join(mistakes)}. {_EXAMPLE}")
    return providers


class _UnreadableSecret(Exception):
    """The text says why."""


def _with_secret(provider: OidcProvider) -> OidcProvider:
    path = provider.client_secret_file
    if path is None:
        return provider
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _UnreadableSecret(f"{path} cannot be read ({type(error).__name__})") from error
    if not secret:
        raise _UnreadableSecret(f"{path} is empty")
    return provider.model_copy(update={"client_secret": SecretStr(secret), "client_secret_file": None})


def _mistake(mistake: Mapping[str, Any]) -> str:
    """``field: what is wrong`` without the value, which may be a secret."""
    path = ".".join(str(part) for part in mistake["loc"])
    message = str(mistake["msg"]).removeprefix("Value error, ")
    if mistake["type"] == "extra_forbidden":
        model = GroupMapping if str(mistake["loc"][0]) == "groups" else OidcProvider
        known = suggest(str(mistake["loc"][-1]), model.model_fields)
        message = f"there is no such field; did you mean {known}?" if known else "there is no such field"
    return f"{path}: {message}" if path else message
