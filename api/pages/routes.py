"""Pages that the server draws itself: enough to log in and to see what goes on, without a build or a network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from fastapi import Depends, Form, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool

from api.auth import SESSION_COOKIE, Caller, Reader, authenticate, caller_of_token, refuse_foreign_page
from api.login import service as login
from api.pages.service import render_home, render_login
from api.routing import new_router
from api.work import Platform, PlatformDep
from core.domain.errors import TrainmasterError, Unauthenticated

router = new_router("pages")

_STYLE: Final = Path(__file__).parent / "style.css"
_ICON: Final = Path(__file__).parent / "icon.svg"
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class NobodyYet:
    """Who is to log in first. ``told``: why their session is good no more."""

    told: str


async def _visitor(request: Request, platform: PlatformDep) -> Caller | NobodyYet:
    try:
        return await authenticate(request, platform)
    except Unauthenticated as error:
        return NobodyYet(error.sentence if SESSION_COOKIE in request.cookies else "")


Visitor = Annotated[Caller | NobodyYet, Depends(_visitor)]


@router.get("/", include_in_schema=False)
async def home(visitor: Visitor, platform: PlatformDep) -> Response:
    if isinstance(visitor, NobodyYet):
        return _html(render_login(visitor.told))
    return _html(await run_in_threadpool(render_home, platform, visitor))


@router.get("/style.css", include_in_schema=False)
async def style() -> Response:
    return Response(_STYLE.read_bytes(), media_type="text/css", headers={"Cache-Control": "max-age=3600"})


@router.get("/icon.svg", include_in_schema=False)
async def icon() -> Response:
    return Response(_ICON.read_bytes(), media_type="image/svg+xml", headers={"Cache-Control": "max-age=86400"})


@router.get("/login", include_in_schema=False)
def login_by_link(platform: PlatformDep, code: Annotated[str, Query(max_length=200)] = "") -> Response:
    """What the printed link opens: the code becomes a session, once."""
    if not code:
        return _html(render_login(""))
    try:
        with platform.write() as work:
            token = login.exchange_code(work, code, name="browser session", ttl=login.SESSION_TTL).token
    except TrainmasterError as error:
        return _html(render_login(error.sentence), error.status)
    return _with_session(platform, token)


@router.post("/login", include_in_schema=False)
async def login_by_token(
    request: Request, platform: PlatformDep, token: Annotated[str, Form(max_length=500)] = ""
) -> Response:
    refuse_foreign_page(request)
    try:
        caller = await caller_of_token(request, platform, token.strip())
    except TrainmasterError as error:
        return _html(render_login(error.sentence), error.status)
    return _with_session(platform, await run_in_threadpool(_open_session, platform, caller))


@router.post("/logout", include_in_schema=False)
def logout(request: Request, caller: Reader, platform: PlatformDep) -> Response:
    refuse_foreign_page(request)
    if SESSION_COOKIE in request.cookies:
        with platform.write() as work:
            login.close_session(work, caller)
        request.app.state.callers.clear()
    response = RedirectResponse("/", 303)
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response


def _open_session(platform: Platform, caller: Caller) -> str:
    with platform.write() as work:
        return login.open_session(work, caller)


def _with_session(platform: Platform, token: str) -> Response:
    response = RedirectResponse("/", 303, headers=_HEADERS)
    response.set_cookie(
        SESSION_COOKIE,
        token,
        max_age=int(login.SESSION_TTL.total_seconds()),
        path="/",
        httponly=True,
        samesite="lax",  # the printed link comes from outside and must arrive with its session
        secure=platform.settings.api_url.startswith("https://"),
    )
    return response


def _html(text: str, status: int = 200) -> Response:
    return HTMLResponse(text, status, _HEADERS)
