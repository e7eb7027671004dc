"""Service accounts of a project, and their tokens, which the project's admins manage."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final

from fastapi import Path, Query, Response
from sqlalchemy import func, select
from trainmaster.wire.admin import (
    SCOPES,
    ServiceAccountCreate,
    ServiceAccountDeleted,
    ServiceAccountTokenCreate,
    ServiceAccountUpdate,
    ServiceAccountView,
    TokenCreated,
    TokenView,
)
from trainmaster.wire.base import Page

from api.app.token_scopes import includes
from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.auth import Caller, ProjectAccess, ProjectAdmin, ProjectViewer
from api.http.paging import PageParams, PageQuery, newest_rows, rows_by_name
from api.http.routing import new_router
from api.tokens import MAX_LIFETIME, views_of
from core.db.bootstrap import add_token
from core.db.repositories.tokens import end_service_account, revoke
from core.db.tables import Job, Membership, Project, Token, User
from core.domain.errors import Forbidden, InvalidRequest, NotFound
from core.domain.jobs.states import JobState
from core.ids import new_id
from core.tokens import token_digest

router = new_router("service accounts", "/projects/{project}/service-accounts")

_TTL: Final = timedelta(days=90)
_ENDED: Final = [state.value for state in JobState if state.is_terminal]
AccountName = Annotated[str, Path(description="Its name, with or without `@project`.", max_length=130)]


@router.get("", operation_id="list_service_accounts", summary="Service accounts of a project")
def list_service_accounts(project: ProjectViewer, context: AppContextDep, page: PageParams) -> Page[ServiceAccountView]:
    """In order of name."""
    with context.read() as work:
        row = project.load(work.session)
        query = select(User, Membership.role).where(User.service_project_id == row.id)
        query = query.join(Membership, (Membership.user_id == User.id) & (Membership.project_id == row.id))
        rows, cursor = rows_by_name(work.session, query, User.name, page)
    return Page(items=[_view_of(user, role) for user, role, _ in rows], next_cursor=cursor)


@router.post("", operation_id="create_service_account", summary="Create a service account", status_code=201)
def create_service_account(
    project: ProjectAdmin, body: ServiceAccountCreate, context: AppContextDep
) -> ServiceAccountView:
    """A user of programs with a role in this project alone. It has no login; admins of the project create its tokens,
    and it stays when the admin who created it leaves. Jobs that it submits are its own.
    """
    with context.write() as work:
        row = project.load(work.session)
        name = f"{body.name}@{row.name}"
        user = User(id=new_id("user"), name=name, is_admin=False, created_at=work.now, service_project_id=row.id)
        work.add_unique(user, f"Service account {name} already exists; choose another name.")
        work.session.add(Membership(project_id=row.id, user_id=user.id, role=body.role))
        work.session.flush()
        _record(work, project.caller, row, "service_account.created", account=name, role=body.role)
        return _view_of(user, body.role)


@router.patch("/{account}", operation_id="update_service_account", summary="Change a service account")
def update_service_account(
    project: ProjectAdmin, account: AccountName, body: ServiceAccountUpdate, context: AppContextDep
) -> ServiceAccountView:
    """Tokens of a disabled account are refused until it is enabled; its jobs continue."""
    with context.write() as work:
        row, user, membership = _load(work, project, account)
        if body.role is not None:
            membership.role = body.role
        if body.is_disabled is not None:
            user.disabled_at = (user.disabled_at or work.now) if body.is_disabled else None
        changes = body.model_dump(exclude_none=True)
        _record(work, project.caller, row, "service_account.changed", account=user.name, **changes)
        return _view_of(user, membership.role)


@router.delete("/{account}", operation_id="delete_service_account", summary="Delete a service account")
def delete_service_account(
    project: ProjectAdmin, account: AccountName, context: AppContextDep
) -> ServiceAccountDeleted:
    """All its tokens are revoked. Its jobs belong to the project and continue: cancel them if they should not. Their
    user is shown as `name@project~id` from then on, and the name is free.
    """
    with context.write() as work:
        row, user, _ = _load(work, project, account)
        name = user.name
        unfinished = select(func.count()).select_from(Job)
        unfinished = unfinished.where(Job.user_id == user.id, Job.state.not_in(_ENDED), Job.deleted_at.is_(None))
        jobs = work.session.scalars(unfinished).one()
        tokens = end_service_account(work.session, user, work.now)
        _record(work, project.caller, row, "service_account.deleted", account=name, revoked_tokens=tokens)
        return ServiceAccountDeleted(name=name, user=user.name, revoked_tokens=tokens, unfinished_jobs=jobs)


@router.get("/{account}/tokens", operation_id="list_service_account_tokens", summary="Tokens of a service account")
def list_service_account_tokens(
    project: ProjectAdmin, account: AccountName, context: AppContextDep, query: Annotated[PageQuery, Query()]
) -> Page[TokenView]:
    """Newest first; their text is never shown again."""
    with context.read() as work:
        _, user, _ = _load(work, project, account)
        rows, cursor = newest_rows(work.session, select(Token).where(Token.user_id == user.id), Token, query)
        return Page(items=views_of(work, [(token, user.name) for (token,) in rows]), next_cursor=cursor)


@router.post(
    "/{account}/tokens",
    operation_id="create_service_account_token",
    summary="Create a token of a service account",
    status_code=201,
)
def create_service_account_token(
    project: ProjectAdmin,
    account: AccountName,
    body: ServiceAccountTokenCreate,
    context: AppContextDep,
    response: Response,
) -> TokenCreated:
    """`token` is shown only once. It expires after 90 days unless `expires_in_s` says otherwise, and stays valid when
    the caller's token is revoked. Its scopes are within those of the caller's.
    """
    response.headers["Cache-Control"] = "no-store"
    for scope in body.scopes:
        if scope in ("admin", "scim") or not includes(project.caller.scopes, scope):
            raise Forbidden(
                f"Service accounts have no scope {scope}, or your own token lacks it; state another.", field="scopes"
            )
    ttl = _TTL if body.expires_in_s is None else timedelta(seconds=min(body.expires_in_s, 10**10))
    if ttl > MAX_LIFETIME:
        raise InvalidRequest("expires_in_s is at most ten years; state less.", field="expires_in_s")
    with context.write() as work:
        row, user, _ = _load(work, project, account)
        scopes = sorted(set(body.scopes), key=SCOPES.index)
        text = add_token(
            work.session, user_id=user.id, name=body.name, scopes=scopes, now=work.now, ttl=ttl, project_ids=[row.id]
        )
        token = work.session.execute(select(Token).where(Token.digest == token_digest(text))).scalar_one()
        data = {"token_id": token.id, "account": user.name, "scopes": scopes}
        _record(work, project.caller, row, "service_account.token_created", **data)
        (view,) = views_of(work, [(token, user.name)])
        return TokenCreated(**view.model_dump(), token=text)


@router.delete(
    "/{account}/tokens/{token_id}",
    operation_id="revoke_service_account_token",
    summary="Revoke a token of a service account",
    status_code=204,
)
def revoke_service_account_token(
    project: ProjectAdmin, account: AccountName, token_id: str, context: AppContextDep
) -> None:
    """Takes effect at once on this API process, within seconds on others."""
    with context.write() as work:
        row, user, _ = _load(work, project, account)
        token = work.session.get(Token, token_id, with_for_update=True)
        if token is None or token.user_id != user.id:
            raise NotFound(f"{user.name} has no token with the ID {token_id}; list its tokens.")
        if token.revoked_at is None:
            revoke(work.session, token, work.now)
            _record(work, project.caller, row, "service_account.token_revoked", account=user.name, token_id=token.id)


def _load(work: UnitOfWork, access: ProjectAccess, account: str) -> tuple[Project, User, Membership]:
    """Raises ``NotFound``, or ``Forbidden`` as of ``ProjectAccess.load``."""
    project = access.load(work.session)
    name = account if "@" in account else f"{account}@{project.name}"
    query = select(User, Membership).where(User.name == name, User.service_project_id == project.id)
    query = query.join(Membership, (Membership.user_id == User.id) & (Membership.project_id == project.id))
    row = work.session.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"Project {project.name} has no service account {account!r}; list its service accounts.")
    return project, row[0], row[1]


def _record(work: UnitOfWork, caller: Caller, project: Project, kind: str, **data: object) -> None:
    work.record_event(kind, caller.actor, project_id=project.id, data=data)


def _view_of(user: User, role: str) -> ServiceAccountView:
    return ServiceAccountView.model_validate(
        {"name": user.name, "role": role, "created_at": user.created_at, "disabled_at": user.disabled_at}
    )
