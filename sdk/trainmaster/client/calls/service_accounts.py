"""Service accounts of projects, and their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainmaster.client.calls.build import params, path, typed, without_content
from trainmaster.client.steps import Call
from trainmaster.wire.admin import (
    ProjectRole,
    Scope,
    ServiceAccountCreate,
    ServiceAccountDeleted,
    ServiceAccountTokenCreate,
    ServiceAccountUpdate,
    ServiceAccountView,
    TokenCreated,
    TokenView,
)
from trainmaster.wire.base import Page


def _accounts(project: str) -> str:
    return path("/projects/{project}/service-accounts", project=project)


def _account(project: str, account: str) -> str:
    return path("/projects/{project}/service-accounts/{account}", project=project, account=account)


def list_service_accounts_page(
    project: str, *, limit: int | None = None, cursor: str | None = None
) -> Call[Page[ServiceAccountView]]:
    """One page of a project's service accounts, by name."""
    query = params(limit=limit, cursor=cursor)
    return typed(Page[ServiceAccountView], "list_service_accounts", "GET", _accounts(project), query=query)


def create_service_account(project: str, name: str, *, role: ProjectRole = "member") -> Call[ServiceAccountView]:
    """A user of programs, with a role in this project alone; for admins of the project."""
    body = ServiceAccountCreate(name=name, role=role)
    return typed(ServiceAccountView, "create_service_account", "POST", _accounts(project), body=body)


def update_service_account(
    project: str, account: str, *, role: ProjectRole | None = None, is_disabled: bool | None = None
) -> Call[ServiceAccountView]:
    """Change the given fields; ``None`` leaves a field unchanged."""
    changes: dict[str, Any] = {"role": role, "is_disabled": is_disabled}
    body = ServiceAccountUpdate(**{name: value for name, value in changes.items() if value is not None})
    return typed(ServiceAccountView, "update_service_account", "PATCH", _account(project, account), body=body)


def delete_service_account(project: str, account: str) -> Call[ServiceAccountDeleted]:
    """Revokes its tokens; its unfinished jobs continue."""
    return typed(ServiceAccountDeleted, "delete_service_account", "DELETE", _account(project, account))


def list_service_account_tokens_page(
    project: str, account: str, *, limit: int | None = None, cursor: str | None = None
) -> Call[Page[TokenView]]:
    """One page of the account's tokens, newest first; for admins of the project."""
    query = params(limit=limit, cursor=cursor)
    at = f"{_account(project, account)}/tokens"
    return typed(Page[TokenView], "list_service_account_tokens", "GET", at, query=query)


def create_service_account_token(
    project: str,
    account: str,
    name: str,
    *,
    scopes: Sequence[Scope] = ("read", "write"),
    expires_in_s: float | None = None,
) -> Call[TokenCreated]:
    """A new token of the account, by default for 90 days; only this response contains its text."""
    body = ServiceAccountTokenCreate(name=name, scopes=list(scopes))
    if expires_in_s is not None:
        body = ServiceAccountTokenCreate(name=name, scopes=list(scopes), expires_in_s=expires_in_s)
    at = f"{_account(project, account)}/tokens"
    return typed(TokenCreated, "create_service_account_token", "POST", at, body=body)


def revoke_service_account_token(project: str, account: str, token_id: str) -> Call[None]:
    """Revoke a token of the account."""
    at = f"{_account(project, account)}{path('/tokens/{token}', token=token_id)}"
    return without_content("revoke_service_account_token", "DELETE", at)
