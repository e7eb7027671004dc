from __future__ import annotations

from datetime import timedelta

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from trainmaster.wire.admin import CallerIdentity, LoginCodeCreated, LoginExchange, SessionOpen, TokenCreated

from api.app.unit_of_work import AppContext, AppContextDep
from api.auth import SESSION_COOKIE, Caller, Reader, Writer, caller_of_token, refuse_foreign_page
from api.http.routing import new_router
from api.login import service
from core.domain.errors import InvalidRequest

router = new_router("login")


@router.post(
    "/login",
    operation_id="exchange_login",
    summary="A token for a one-time login code",
    status_code=201,
    openapi_extra={"security": []},
)
def exchange_login(body: LoginExchange, context: AppContextDep, response: Response) -> TokenCreated:
    """The code can be used once. The token is only in this response."""
    response.headers["Cache-Control"] = "no-store"
    with context.write() as work:
        return service.exchange_code(work, body.code, name="login", ttl=service.TOKEN_TTL)


@router.post("/login/codes", operation_id="create_login_code", summary="A one-time login code", status_code=201)
def create_login_code(caller: Writer, context: AppContextDep, response: Response) -> LoginCodeCreated:
    """For a browser or another machine of the caller. The caller's token must have all scopes that the code gives."""
    response.headers["Cache-Control"] = "no-store"
    with context.write() as work:
        return service.make_code(work, caller)


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
        caller = await caller_of_token(request, context, body.token.strip())
        token, left = await run_in_threadpool(_session_of, context, caller)
    else:
        token, left = await run_in_threadpool(_session_for, context, body.code or ""), service.SESSION_TTL
        caller = await caller_of_token(request, context, token)
    response.headers["Cache-Control"] = "no-store"
    response.set_cookie(
        SESSION_COOKIE,
        token,
        max_age=int(left.total_seconds()),
        path="/",
        httponly=True,
        samesite="strict",  # other sites' links open the page without the cookie; its own requests have it
        secure=context.settings.api_url.startswith("https://"),
    )
    return service.identity(caller)


@router.delete("/session", operation_id="close_session", summary="End a browser's session", status_code=204)
def close_session(request: Request, caller: Reader, context: AppContextDep) -> Response:
    """The cookie's token is revoked at once. A program's token is not."""
    if SESSION_COOKIE in request.cookies:
        with context.write() as work:
            service.close_session(work, caller)
        request.app.state.callers.clear()
    response = Response(status_code=204)
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response


def _session_of(context: AppContext, caller: Caller) -> tuple[str, timedelta]:
    with context.write() as work:
        return service.open_session(work, caller)


def _session_for(context: AppContext, code: str) -> str:
    with context.write() as work:
        return service.exchange_code(work, code, name="browser session", ttl=service.SESSION_TTL).token


@router.get("/me", operation_id="get_me", summary="The caller's user, scopes and roles")
async def get_me(caller: Reader) -> CallerIdentity:
    return service.identity(caller)
