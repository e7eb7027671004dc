"""Projects, users, tokens, secrets, volumes, nodes, and the server itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from trainmaster.client.calls.build import params, path, typed, without_content
from trainmaster.client.steps import Call
from trainmaster.wire.admin import (
    CallerIdentity,
    DeviceLogin,
    DeviceLoginPoll,
    DeviceLoginStarted,
    HealthView,
    IdentityLink,
    IdentityView,
    LoginCodeCreated,
    LoginExchange,
    LoginProviderView,
    MemberSet,
    MemberView,
    NodeLabelsSet,
    NodeView,
    ProjectCreate,
    ProjectRole,
    ProjectUpdate,
    ProjectView,
    Scope,
    SecretSet,
    SecretView,
    TokenCreate,
    TokenCreated,
    TokenView,
    UserCreate,
    UserUpdate,
    UserView,
    VolumeAccess,
    VolumeGrantView,
    VolumeView,
)
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import ReasonRequest
from trainmaster.wire.volumes import VolumeGrantSet, volume_create

VolumeKind: TypeAlias = Literal["local", "nfs", "pvc", "csi"]


def get_health() -> Call[HealthView]:
    """The server's health; needs no token."""
    return typed(HealthView, "get_health", "GET", "/health")


def get_me() -> Call[CallerIdentity]:
    """The user and scopes of the token."""
    return typed(CallerIdentity, "get_me", "GET", "/me")


def exchange_login_code(code: str) -> Call[TokenCreated]:
    """A token for a one-time login code."""
    return typed(TokenCreated, "exchange_login", "POST", "/login", body=LoginExchange(code=code))


def create_login_code() -> Call[LoginCodeCreated]:
    """A one-time code for the caller: ``<server>/login?code=…`` logs in to the web interface."""
    return typed(LoginCodeCreated, "create_login_code", "POST", "/login/codes")


def list_login_providers_page(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[LoginProviderView]]:
    """One page of the identity providers by which users may log in, by name."""
    query = params(limit=limit, cursor=cursor)
    return typed(Page[LoginProviderView], "list_login_providers", "GET", "/login/providers", query=query)


def start_device_login(provider: str) -> Call[DeviceLoginStarted]:
    """Begin a login by the provider in a browser anywhere; needs no token."""
    at = path("/login/providers/{provider}/device", provider=provider)
    return typed(DeviceLoginStarted, "start_device_login", "POST", at)


def poll_device_login(provider: str, device_code: str) -> Call[DeviceLogin]:
    """The token of a login that ``start_device_login`` began, once the user has finished it."""
    at = path("/login/providers/{provider}/token", provider=provider)
    return typed(DeviceLogin, "poll_device_login", "POST", at, body=DeviceLoginPoll(device_code=device_code))


def get_spec_schema() -> Call[dict[str, Any]]:
    """The JSON Schema of the server's job spec."""
    return typed(dict[str, Any], "get_spec_schema", "GET", "/spec/schema")


# --- projects -------------------------------------------------------------------------------------------------------


def list_projects_page(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[ProjectView]]:
    """One page of the projects that the caller may see, by name."""
    query = params(limit=limit, cursor=cursor)
    return typed(Page[ProjectView], "list_projects", "GET", "/projects", query=query)


def get_project(project: str) -> Call[ProjectView]:
    return typed(ProjectView, "get_project", "GET", path("/projects/{project}", project=project))


def create_project(name: str, *, description: str = "", weight: float = 1.0) -> Call[ProjectView]:
    body = ProjectCreate(name=name, description=description, weight=weight)
    return typed(ProjectView, "create_project", "POST", "/projects", body=body)


def update_project(project: str, *, description: str | None = None, weight: float | None = None) -> Call[ProjectView]:
    """Change the given fields; ``None`` leaves a field unchanged."""
    changes: dict[str, Any] = {"description": description, "weight": weight}
    body = ProjectUpdate(**{name: value for name, value in changes.items() if value is not None})
    return typed(ProjectView, "update_project", "PATCH", path("/projects/{project}", project=project), body=body)


def delete_project(project: str) -> Call[None]:
    return without_content("delete_project", "DELETE", path("/projects/{project}", project=project))


def list_members_page(project: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[MemberView]]:
    """One page of a project's members, by name."""
    query = params(limit=limit, cursor=cursor)
    return typed(
        Page[MemberView], "list_members", "GET", path("/projects/{project}/members", project=project), query=query
    )


def set_member(project: str, user: str, role: ProjectRole) -> Call[MemberView]:
    at = path("/projects/{project}/members/{user}", project=project, user=user)
    return typed(MemberView, "set_member", "PUT", at, body=MemberSet(role=role))


def remove_member(project: str, user: str) -> Call[None]:
    return without_content(
        "delete_member", "DELETE", path("/projects/{project}/members/{user}", project=project, user=user)
    )


def list_secrets_page(project: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[SecretView]]:
    """One page of the names of a project's secrets; values are never returned."""
    query = params(limit=limit, cursor=cursor)
    return typed(
        Page[SecretView], "list_secrets", "GET", path("/projects/{project}/secrets", project=project), query=query
    )


def set_secret(project: str, name: str, value: str) -> Call[SecretView]:
    at = path("/projects/{project}/secrets/{name}", project=project, name=name)
    return typed(SecretView, "set_secret", "PUT", at, body=SecretSet(value=value))


def delete_secret(project: str, name: str) -> Call[None]:
    at = path("/projects/{project}/secrets/{name}", project=project, name=name)
    return without_content("delete_secret", "DELETE", at)


# --- users and tokens -----------------------------------------------------------------------------------------------


def list_users_page(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[UserView]]:
    """One page of the users visible to the caller, by name."""
    query = params(limit=limit, cursor=cursor)
    return typed(Page[UserView], "list_users", "GET", "/users", query=query)


def create_user(name: str, *, is_admin: bool = False) -> Call[UserView]:
    return typed(UserView, "create_user", "POST", "/users", body=UserCreate(name=name, is_admin=is_admin))


def list_identities_page(user: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[IdentityView]]:
    """One page of the identities by which the user logs in, the newest first."""
    query = params(limit=limit, cursor=cursor)
    at = path("/users/{user}/identities", user=user)
    return typed(Page[IdentityView], "list_identities", "GET", at, query=query)


def link_identity(user: str, *, provider: str, subject: str) -> Call[IdentityView]:
    """Let the provider's user ``subject`` (claim ``sub``) log in as ``user``; for platform admins."""
    at = path("/users/{user}/identities", user=user)
    return typed(IdentityView, "link_identity", "POST", at, body=IdentityLink(provider=provider, subject=subject))


def unlink_identity(user: str, identity: str) -> Call[None]:
    """Remove an identity, with what its groups gave; for platform admins."""
    at = path("/users/{user}/identities/{identity}", user=user, identity=identity)
    return without_content("unlink_identity", "DELETE", at)


def update_user(user: str, *, is_admin: bool | None = None, is_disabled: bool | None = None) -> Call[UserView]:
    """Change the given fields; ``None`` leaves a field unchanged."""
    changes: dict[str, Any] = {"is_admin": is_admin, "is_disabled": is_disabled}
    body = UserUpdate(**{name: value for name, value in changes.items() if value is not None})
    return typed(UserView, "update_user", "PATCH", path("/users/{user}", user=user), body=body)


def list_tokens_page(
    *, user: str | None = None, all_users: bool = False, limit: int | None = None, cursor: str | None = None
) -> Call[Page[TokenView]]:
    """One page of the caller's tokens, newest first; for platform admins also those of ``user`` or of all users."""
    query = params(user=user, all_users=all_users or None, limit=limit, cursor=cursor)
    return typed(Page[TokenView], "list_tokens", "GET", "/tokens", query=query)


def create_token(
    name: str,
    *,
    scopes: Sequence[Scope] = ("read", "write"),
    expires_in_s: float | None = None,
    user: str | None = None,
    projects: Sequence[str] | None = None,
) -> Call[TokenCreated]:
    """A new token; only this response contains its text. ``user``: another user, for platform admins. ``projects``:
    limits it to these.
    """
    required: dict[str, Any] = {"name": name, "scopes": list(scopes)}
    limit = None if projects is None else list(projects)
    optional: dict[str, Any] = {"expires_in_s": expires_in_s, "user": user, "projects": limit}
    body = TokenCreate(**required, **{key: value for key, value in optional.items() if value is not None})
    return typed(TokenCreated, "create_token", "POST", "/tokens", body=body)


def revoke_token(token_id: str, *, keep_children: bool = False) -> Call[None]:
    """Revoke a token and all that was created with it; ``keep_children``: only the token itself."""
    query = params(keep_children=keep_children or None)
    return without_content("revoke_token", "DELETE", path("/tokens/{token}", token=token_id), query=query)


# --- nodes and volumes ----------------------------------------------------------------------------------------------


def list_nodes_page(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[NodeView]]:
    """One page of the nodes with their usage, by name."""
    query = params(limit=limit, cursor=cursor)
    return typed(Page[NodeView], "list_nodes", "GET", "/nodes", query=query)


def get_node(node: str) -> Call[NodeView]:
    return typed(NodeView, "get_node", "GET", path("/nodes/{node}", node=node))


def cordon_node(node: str, *, reason: str = "") -> Call[NodeView]:
    """Mark the node unschedulable; running replicas continue."""
    at = path("/nodes/{node}/cordon", node=node)
    return typed(NodeView, "cordon_node", "POST", at, body=ReasonRequest(reason=reason), is_repeatable=True)


def drain_node(node: str, *, reason: str = "") -> Call[NodeView]:
    """Cordon the node and move its jobs to other nodes; :func:`uncordon_node` makes it schedulable again."""
    at = path("/nodes/{node}/drain", node=node)
    return typed(NodeView, "drain_node", "POST", at, body=ReasonRequest(reason=reason), is_repeatable=True)


def uncordon_node(node: str) -> Call[NodeView]:
    at = path("/nodes/{node}/uncordon", node=node)
    return typed(NodeView, "uncordon_node", "POST", at, is_repeatable=True)


def release_node(node: str, *, reason: str = "") -> Call[NodeView]:
    """End the node's quarantine: it is schedulable again, and its earlier failures no longer count."""
    at = path("/nodes/{node}/release", node=node)
    return typed(NodeView, "release_node", "POST", at, body=ReasonRequest(reason=reason), is_repeatable=True)


def set_node_labels(node: str, labels: Mapping[str, str]) -> Call[NodeView]:
    """Replace the labels set by admins; the labels reported by the executor stay."""
    at = path("/nodes/{node}/labels", node=node)
    return typed(NodeView, "set_node_labels", "PUT", at, body=NodeLabelsSet(labels=dict(labels)))


def delete_node(node: str) -> Call[None]:
    """Remove a node that no longer exists."""
    return without_content("delete_node", "DELETE", path("/nodes/{node}", node=node))


def list_volumes_page(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[VolumeView]]:
    """One page of the volumes, by name."""
    query = params(limit=limit, cursor=cursor)
    return typed(Page[VolumeView], "list_volumes", "GET", "/volumes", query=query)


def get_volume(volume: str) -> Call[VolumeView]:
    return typed(VolumeView, "get_volume", "GET", path("/volumes/{volume}", volume=volume))


def create_volume(
    name: str,
    *,
    kind: VolumeKind = "local",
    root: str | None = None,
    config: Mapping[str, Any] | None = None,
    is_read_only: bool = False,
    grants: Sequence[Mapping[str, str]] = (),
) -> Call[VolumeView]:
    """Register a volume.

    Args:
        root: its path on the server.
        config: how containers mount it: ``server`` and ``path`` for nfs, ``claim`` for pvc, ``driver`` and
            ``attributes`` for csi, ``path`` for local if the nodes have another path.
        grants: each with the arguments of :func:`set_volume_grant`; without any only platform admins may use it.
    """
    body = volume_create(
        {
            "name": name,
            "kind": kind,
            "root": root,
            "config": dict(config or {}),
            "is_read_only": is_read_only,
            "grants": [dict(grant) for grant in grants],
        }
    )
    return typed(VolumeView, "create_volume", "POST", "/volumes", body=body)


def delete_volume(volume: str) -> Call[None]:
    return without_content("delete_volume", "DELETE", path("/volumes/{volume}", volume=volume))


def set_volume_grant(volume: str, grantee: str, access: VolumeAccess, *, prefix: str = "") -> Call[VolumeGrantView]:
    """Grant a project, or ``everyone``, access to the volume or to its folder ``prefix``."""
    at = path("/volumes/{volume}/grants/{grantee}", volume=volume, grantee=grantee)
    body = VolumeGrantSet(access=access, prefix=prefix)
    return typed(VolumeGrantView, "set_volume_grant", "PUT", at, body=body)


def delete_volume_grant(volume: str, grantee: str, *, prefix: str = "") -> Call[None]:
    """Revoke the grant of exactly this prefix."""
    at = path("/volumes/{volume}/grants/{grantee}", volume=volume, grantee=grantee)
    return without_content("delete_volume_grant", "DELETE", at, query=params(prefix=prefix or None))
