"""Login: exchange of one-time codes for tokens, and of tokens for browser sessions."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, cast

from fastapi import Request, Response
from sqlalchemy import select, update
from starlette.concurrency import run_in_threadpool
from trainmaster.wire.admin import CallerIdentity, LoginCodeCreated, LoginExchange, SessionOpen, TokenCreated
from trainmaster.wire.admin import Scope as TokenScope

from api.app import audit
from api.app.fair_use import fair_use_of
from api.app.token_scopes import Scope
from api.app.unit_of_work import AppContext, AppContextDep, UnitOfWork
from api.auth import SESSION_COOKIE, Caller, Reader, Writer, caller_of_token, refuse_foreign_page
from api.http.routing import new_router
from core.db.bootstrap import LOGIN_CODE_TTL, add_login_code, add_token
from core.db.repositories.tokens import expiry_within, lock_parent, revoke
from core.db.tables import LoginCode, Token, User
from core.domain.errors import Forbidden, InvalidRequest, Unauthenticated
from core.tokens import SESSION_PREFIX, new_session_token, token_digest

router = new_router("login")

_SESSION_TTL: Final = timedelta(days=30)
_SESSION_NAME: Final = "browser session"
_TOKEN_TTL: Final = timedelta(days=90)
_NO_LOGIN: Final = "This is the token of a service account, which has no login; log in as a user."


@router.post(
    "/login",
    operation_id="exchange_login",
    summary="A token for a one-time login code",
    status_code=201,
    openapi_extra={"security": []},
)
async def exchange_login(
    body: LoginExchange, request: Request, context: AppContextDep, response: Response
) -> TokenCreated:
    """The code can be used once. The token is only in this response."""
    response.headers["Cache-Control"] = "no-store"

    def exchange() -> TokenCreated:
        with context.write() as work:
            return _exchange_code(work, body.code, name="login", ttl=_TOKEN_TTL)

    async with fair_use_of(request).login_attempt(request):
        return await run_in_threadpool(exchange)


@router.post("/login/codes", operation_id="create_login_code", summary="A one-time login code", status_code=201)
def create_login_code(caller: Writer, context: AppContextDep, response: Response) -> LoginCodeCreated:
    """For a browser or another machine of the caller. The caller's token must have all scopes that the code gives; what
    the code gives is valid for as long as that token at most, and is revoked with it.
    """
    response.headers["Cache-Control"] = "no-store"
    audit.note_object("login_code", caller.user)
    with context.write() as work:
        # From the user, not from the caller's token: the code gives all scopes that the user may have.
        if caller.is_service_account:
            raise Forbidden(_NO_LOGIN)
        is_admin = work.session.execute(select(User.is_admin).where(User.id == caller.user_id)).scalar_one()
        is_admin = is_admin and caller.project_ids_limit is None
        for scope in _scopes_of(is_admin):
            if not caller.may(Scope(scope)):
                raise Forbidden(f"A login gives the scope {scope}, which your own token lacks; use one that has it.")
        parent = lock_parent(work.session, caller.token_id, work.now)
        code = add_login_code(work.session, caller.user_id, now=work.now, parent_token_id=parent.id)
        work.record_event("user.login_code_made", caller.actor)
        expires_at = expiry_within(parent, work.now + LOGIN_CODE_TTL)
        return LoginCodeCreated(user=caller.user, code=code, expires_at=expires_at or work.now + LOGIN_CODE_TTL)


@router.post(
    "/session",
    operation_id="open_session",
    summary="Begin a browser's session",
    status_code=201,
    openapi_extra={"security": []},
)
async def open_session(
    body: SessionOpen, request: Request, context: AppContextDep, response: Response
) -> CallerIdentity:
    """For a token or a one-time code. The session is an HttpOnly cookie; the response has no token. It is valid for 30
    days, at most as long as the token, and is revoked with it.

    Only pages of this platform may call it (checked by `Origin` and `Sec-Fetch-Site`).
    """
    refuse_foreign_page(request)
    if (body.token is None) == (body.code is None):
        raise InvalidRequest("State either token or code, not both.", field="token")
    if body.token is not None:
        shown = body.token.strip()
        if shown.startswith(SESSION_PREFIX):
            raise Unauthenticated("This is a browser's session, which opens no other one; log in with a token.")
        caller = await caller_of_token(request, context, shown)
        if caller.is_service_account:
            raise Forbidden(_NO_LOGIN)
        token, left = await run_in_threadpool(_open_session, context, caller)
    else:
        async with fair_use_of(request).login_attempt(request):
            token, left = await run_in_threadpool(_open_session_by_code, context, body.code or "")
        caller = await caller_of_token(request, context, token)
    response.headers["Cache-Control"] = "no-store"
    set_session_cookie(response, context, token, left)
    return identity_of(caller)


@router.delete("/session", operation_id="close_session", summary="End a browser's session", status_code=204)
def close_session(request: Request, caller: Reader, context: AppContextDep) -> Response:
    """The cookie's token is revoked at once, with what was created in the session. A program's token is not."""
    audit.note_object("token", caller.token_id)
    if SESSION_COOKIE in request.cookies:
        with context.write() as work:
            token = work.session.get(Token, caller.token_id, with_for_update=True)
            if token is not None:
                revoke(work.session, token, work.now)
        request.app.state.callers.clear()
    response = Response(status_code=204)
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response


@router.get("/me", operation_id="get_me", summary="The caller's user, scopes and roles")
async def get_me(caller: Reader) -> CallerIdentity:
    return identity_of(caller)


def set_session_cookie(response: Response, context: AppContext, token: str, ttl: timedelta) -> None:
    response.set_cookie(
        SESSION_COOKIE,
        token,
        max_age=int(ttl.total_seconds()),
        path="/",
        httponly=True,
        samesite="strict",  # other sites' links open the page without the cookie; its own requests have it
        secure=context.settings.api_url.startswith("https://"),
    )


def add_login_token(
    work: UnitOfWork, user: User, *, name: str, ttl: timedelta, token: str | None = None, parent: Token | None = None
) -> TokenCreated:
    """A token of a login with the scopes that the user may have, within those of ``parent``. ``token``: its text;
    ``None``: a new user's token.
    """
    scopes = _scopes_of(user.is_admin)
    expires_at = expiry_within(parent, work.now + ttl) or work.now + ttl
    text = add_token(
        work.session, user_id=user.id, name=name, token=token, parent_token_id=None if parent is None else parent.id,
        now=work.now, ttl=expires_at - work.now,
        scopes=scopes if parent is None else [scope for scope in scopes if scope in parent.scopes],
        project_ids=None if parent is None else parent.project_ids,
    )  # fmt: skip
    row = work.session.execute(select(Token).where(Token.digest == token_digest(text))).scalar_one()
    audit.note_caller(user.name, user.id, row.id)
    return TokenCreated(
        id=row.id,
        user=user.name,
        name=row.name,
        scopes=row.scopes,
        created_at=row.created_at,
        expires_at=row.expires_at,
        parent_id=row.parent_token_id,
        token=text,
    )


def _exchange_code(work: UnitOfWork, code: str, *, name: str, ttl: timedelta, token: str | None = None) -> TokenCreated:
    """A token for a one-time code, which cannot be used again. ``token``: its text; ``None``: a new user's token.

    Raises:
        Unauthenticated: the code is unknown, used or expired; its user is disabled; or the token that created it is no
            longer valid.
    """
    digest = token_digest(code)
    taken = work.session.execute(
        update(LoginCode)
        .where(LoginCode.digest == digest, LoginCode.used_at.is_(None), LoginCode.expires_at > work.now)
        .values(used_at=work.now)
        .returning(LoginCode.user_id, LoginCode.parent_token_id)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    if taken is None:
        raise Unauthenticated(_why_not(work, digest))
    user_id, parent_id = taken
    parent = None if parent_id is None else lock_parent(work.session, parent_id, work.now)
    user = work.session.execute(select(User).where(User.id == user_id)).scalar_one()
    if user.disabled_at is not None:
        raise Unauthenticated("This user is disabled; ask an admin of the platform.")
    made = add_login_token(work, user, name=name, ttl=ttl, token=token, parent=parent)
    work.record_event("user.logged_in", f"user:{user.name}", reason=f"By a one-time code ({name}).")
    return made


def _why_not(work: UnitOfWork, digest: str) -> str:
    code = work.session.get(LoginCode, digest)
    if code is None:
        return "This login code is unknown here; get a new link (`trainmaster login --link` prints one)."
    if code.used_at is not None:
        return "This login code was already used; get a new link (`trainmaster login --link` prints one)."
    return "This login code has expired; get a new link (`trainmaster login --link` prints one)."


def _open_session(context: AppContext, caller: Caller) -> tuple[str, timedelta]:
    """A session token for a browser, opened by the caller's token, and how long it is valid.

    Logging out revokes the session token alone; revoking the caller's token revokes both.

    Raises:
        Unauthenticated: the caller's token was revoked or has expired just now.
    """
    with context.write() as work:
        shown = lock_parent(work.session, caller.token_id, work.now)
        left = (expiry_within(shown, work.now + _SESSION_TTL) or work.now) - work.now
        token = add_token(
            work.session,
            user_id=caller.user_id,
            name=_SESSION_NAME,
            token=new_session_token(),
            scopes=sorted(caller.scopes),
            now=work.now,
            ttl=left,
            parent_token_id=shown.id,
            project_ids=shown.project_ids,
        )
        return token, left


def _open_session_by_code(context: AppContext, code: str) -> tuple[str, timedelta]:
    with context.write() as work:
        made = _exchange_code(work, code, name=_SESSION_NAME, ttl=_SESSION_TTL, token=new_session_token())
        return made.token, (made.expires_at or work.now) - work.now


def _scopes_of(is_admin: bool) -> tuple[str, ...]:
    return ("read", "write", "admin") if is_admin else ("read", "write")


def identity_of(caller: Caller) -> CallerIdentity:
    return CallerIdentity(
        user=caller.user,
        is_admin=caller.is_admin,
        scopes=cast("list[TokenScope]", sorted(caller.scopes)),
        projects={member.project: member.role for member in caller.projects.values()},
    )
