from __future__ import annotations

from fastapi import Response
from trainmaster.wire.admin import Identity, LoginCodeCreated, LoginExchange, TokenCreated

from api.auth import Reader, Writer
from api.login import service
from api.routing import new_router
from api.work import PlatformDep

router = new_router("login")


@router.post(
    "/login",
    operation_id="exchange_login",
    summary="A token for a one-time login code",
    status_code=201,
    openapi_extra={"security": []},
)
def exchange_login(body: LoginExchange, platform: PlatformDep, response: Response) -> TokenCreated:
    """The code is spent by this; the token is in this answer and never again."""
    response.headers["Cache-Control"] = "no-store"
    with platform.write() as work:
        return service.exchange_code(work, body.code, name="login", ttl=service.TOKEN_TTL)


@router.post("/login/codes", operation_id="create_login_code", summary="A one-time login code", status_code=201)
def create_login_code(caller: Writer, platform: PlatformDep, response: Response) -> LoginCodeCreated:
    """For a browser or another machine of the caller's. The token must have every scope that the code gives."""
    response.headers["Cache-Control"] = "no-store"
    with platform.write() as work:
        return service.make_code(work, caller)


@router.get("/me", operation_id="get_me", summary="Who the token belongs to, and where they may do what")
async def get_me(caller: Reader) -> Identity:
    return service.identity(caller)
