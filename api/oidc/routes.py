"""Routes of logins by OpenID Connect, and of the identities of users."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Final

from fastapi import Depends, Request, Response
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from trainmaster.wire.admin import (
    DeviceLogin,
    DeviceLoginPoll,
    DeviceLoginStarted,
    IdentityLink,
    IdentityView,
    LoginProviderView,
    ProviderLogin,
    ProviderLoginResponse,
    ProviderLoginStart,
    ProviderSession,
    TokenCreated,
)
from trainmaster.wire.base import Page

from api.app.fair_use import fair_use_of
from api.app.unit_of_work import AppContext, AppContextDep
from api.auth import PlatformAdmin, Reader, caller_of_token, refuse_foreign_page
from api.http.paging import PageParams, cut, make_cursor, newest_rows, plain, read_cursor
from api.http.routing import new_router
from api.login import add_login_token, identity_of, set_session_cookie
from api.oidc.flows import DEFAULT_PAGE, LOGIN_TTL, AuthorizationResponse, LoginFlows
from api.oidc.id_tokens import LoginClaims
from api.oidc.provisioning import find_identity, link, provision, revoke_grants
from core.db.tables import User, UserIdentity
from core.domain.errors import Conflict, Forbidden, NotFound
from core.job_users import refusal_of_users
from core.tokens import new_session_token

router = new_router("login")

_COOKIE: Final = "trainmaster_login"
_COOKIE_PATH: Final = "/api/v1/login/providers"
_OPEN: Final[dict[str, Any]] = {"security": []}


async def _oidc(request: Request) -> LoginFlows:
    flows: LoginFlows = request.app.state.oidc
    return flows


Flows = Annotated[LoginFlows, Depends(_oidc)]


@router.get(
    "/login/providers",
    operation_id="list_login_providers",
    summary="Identity providers by which users may log in",
    openapi_extra=_OPEN,
)
async def list_login_providers(flows: Flows, page: PageParams) -> Page[LoginProviderView]:
    """In the order of their names. Tokens and login links work with any of them."""
    after = "" if page.cursor is None else plain(read_cursor(page.cursor, (str,))[0])
    behind = sorted((each for each in flows.providers if each.name > after), key=lambda each: each.name)
    shown, is_cut = cut(behind, page.limit)
    views = [LoginProviderView(name=provider.name, label=provider.title) for provider in shown]
    return Page(items=views, next_cursor=make_cursor(shown[-1].name) if is_cut else None)


@router.post(
    "/login/providers/{provider}",
    operation_id="start_provider_login",
    summary="Start a browser's login by a provider",
    status_code=201,
    openapi_extra=_OPEN,
)
async def start_provider_login(
    provider: str,
    body: ProviderLoginStart,
    request: Request,
    context: AppContextDep,
    flows: Flows,
    response: Response,
) -> ProviderLogin:
    """The browser opens `authorization_url`; the provider sends it back to `/login/{provider}` with what the next
    request needs. A cookie binds the login to this browser for 10 minutes.
    """
    refuse_foreign_page(request)
    fair_use_of(request).demand_login_start(request)
    url, sealed = await flows.start(provider, body.next or DEFAULT_PAGE)
    response.headers["Cache-Control"] = "no-store"
    response.set_cookie(
        _COOKIE,
        sealed,
        max_age=int(LOGIN_TTL.total_seconds()),
        path=_COOKIE_PATH,
        httponly=True,
        samesite="strict",  # the page to which the provider sends the browser back finishes the login itself
        secure=context.settings.api_url.startswith("https://"),
    )
    return ProviderLogin(authorization_url=url)


@router.post(
    "/login/providers/{provider}/session",
    operation_id="finish_provider_login",
    summary="Finish a browser's login by a provider",
    status_code=201,
    openapi_extra=_OPEN,
)
async def finish_provider_login(
    provider: str,
    body: ProviderLoginResponse,
    request: Request,
    context: AppContextDep,
    flows: Flows,
    response: Response,
) -> ProviderSession:
    """With the query of the address to which the provider sent the browser back. The session is an HttpOnly cookie, as
    of `POST /session`. Users are created at their first login, and get the roles of their groups at each.
    """
    refuse_foreign_page(request)
    answer = AuthorizationResponse(**body.model_dump())
    async with fair_use_of(request).login_attempt(request):
        claims, page = await flows.finish(provider, answer, request.cookies.get(_COOKIE, ""))
        made = await run_in_threadpool(_log_in, context, flows, provider, claims, "browser session")
    request.app.state.callers.clear()  # roles may have changed
    caller = await caller_of_token(request, context, made.token)
    response.headers["Cache-Control"] = "no-store"
    response.delete_cookie(_COOKIE, path=_COOKIE_PATH)
    set_session_cookie(response, context, made.token, timedelta(days=flows.client(provider).provider.session_days))
    return ProviderSession(**identity_of(caller).model_dump(), next=page)


@router.post(
    "/login/providers/{provider}/device",
    operation_id="start_device_login",
    summary="Start a login on another device",
    status_code=201,
    openapi_extra=_OPEN,
)
async def start_device_login(provider: str, request: Request, flows: Flows, response: Response) -> DeviceLoginStarted:
    """The device authorization flow (RFC 8628): the user opens `verification_uri` anywhere and enters `user_code`.
    Meanwhile poll `POST /login/providers/{provider}/token` every `interval_s` seconds.
    """
    response.headers["Cache-Control"] = "no-store"
    fair_use_of(request).demand_login_start(request)
    started = await flows.start_device(provider)
    return DeviceLoginStarted(
        device_code=started.device_code,
        user_code=started.user_code,
        verification_uri=started.verification_uri,
        verification_uri_complete=started.verification_uri_complete,
        expires_in_s=started.expires_in_s,
        interval_s=started.interval_s,
    )


@router.post(
    "/login/providers/{provider}/token",
    operation_id="poll_device_login",
    summary="The token of a login on another device",
    openapi_extra=_OPEN,
)
async def poll_device_login(
    provider: str,
    body: DeviceLoginPoll,
    request: Request,
    context: AppContextDep,
    flows: Flows,
    response: Response,
) -> DeviceLogin:
    """`token` is `null` until the user has finished; add `slow_down_s` to the time between polls."""
    response.headers["Cache-Control"] = "no-store"
    async with fair_use_of(request).login_attempt(request):
        found = await flows.poll_device(provider, body.device_code)
        if not isinstance(found, LoginClaims):
            return DeviceLogin(slow_down_s=found)
        made = await run_in_threadpool(_log_in, context, flows, provider, found, "login")
    request.app.state.callers.clear()
    return DeviceLogin(token=made)


def _log_in(context: AppContext, flows: LoginFlows, name: str, claims: LoginClaims, kind: str) -> TokenCreated:
    """A token of the user; ``kind``: "browser session" or "login"."""
    provider = flows.client(name).provider
    with context.write() as work:
        refusal = refusal_of_users(context.settings)
        if refusal is not None and find_identity(work, claims) is None:
            raise Conflict(refusal)
        user = provision(work, provider, claims)
        made = add_login_token(
            work,
            user,
            name=kind,
            ttl=timedelta(days=provider.session_days),
            token=new_session_token() if kind == "browser session" else None,
        )
        work.record_event("user.logged_in", f"user:{user.name}", reason=f"By the provider {name} ({kind}).")
        return made


@router.get("/users/{user}/identities", operation_id="list_identities", summary="Identities by which a user logs in")
def list_identities(user: str, caller: Reader, context: AppContextDep, page: PageParams) -> Page[IdentityView]:
    """The newest first. Platform admins see those of all users, others their own."""
    if user != caller.user and not caller.is_admin:
        raise Forbidden("Only a platform admin sees identities of other users.")
    with context.read() as work:
        query = select(UserIdentity).join(User, User.id == UserIdentity.user_id).where(User.name == user)
        rows, cursor = newest_rows(work.session, query, UserIdentity, page)
        return Page(items=[_view_of(row) for (row,) in rows], next_cursor=cursor)


@router.post(
    "/users/{user}/identities",
    operation_id="link_identity",
    summary="Let an identity log in as a user",
    status_code=201,
)
def link_identity(
    user: str, body: IdentityLink, caller: PlatformAdmin, context: AppContextDep, flows: Flows, request: Request
) -> IdentityView:
    """An identity of another user moves: that user loses what its groups gave. The user gets it at the next login."""
    provider = flows.client(body.provider).provider
    with context.write() as work:
        row = work.session.execute(select(User).where(User.name == user)).scalar_one_or_none()
        if row is None:
            raise NotFound(f"There is no user {user!r}; `GET /api/v1/users` lists them.")
        if row.service_project_id is not None:
            raise Conflict(f"{user} is a service account, which has no login; link the identity to a user.")
        identity = link(work, provider, body.subject, row)
        data = {"user": user, "issuer": provider.issuer, "subject": body.subject}
        work.record_event("user.identity_linked", caller.actor, data=data)
        view = _view_of(identity)
    request.app.state.callers.clear()
    return view


@router.delete(
    "/users/{user}/identities/{identity}",
    operation_id="unlink_identity",
    summary="Remove an identity of a user",
    status_code=204,
)
def unlink_identity(user: str, identity: str, caller: PlatformAdmin, context: AppContextDep, request: Request) -> None:
    """Ends what its groups gave. Its next login creates another user; to keep the person out, disable the user."""
    with context.write() as work:
        row = work.session.execute(
            select(UserIdentity)
            .join(User, User.id == UserIdentity.user_id)
            .where(User.name == user, UserIdentity.id == identity)
        ).scalar_one_or_none()
        if row is None:
            raise NotFound(
                f"User {user!r} has no identity {identity!r}; `GET /api/v1/users/{user}/identities` lists them."
            )
        revoke_grants(work, row)
        work.session.delete(row)
        data = {"user": user, "issuer": row.issuer, "subject": row.subject}
        work.record_event("user.identity_unlinked", caller.actor, data=data)
    request.app.state.callers.clear()


def _view_of(identity: UserIdentity) -> IdentityView:
    return IdentityView(
        id=identity.id,
        provider=identity.provider,
        issuer=identity.issuer,
        subject=identity.subject,
        email=identity.email,
        created_at=identity.created_at,
        last_login_at=identity.last_login_at,
    )
