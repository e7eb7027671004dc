from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from api.app.unit_of_work import AppContext, AppContextDep
from api.auth import Caller, Scope, require
from api.http.routing import new_router
from api.prometheus.service import render
from core.db.tables import User
from core.domain.errors import Forbidden

router = new_router("metrics")

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})
# Headers of proxies: a request through a proxy on this machine comes from elsewhere.
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
_authenticate = require(Scope.READ)


async def _scraper(request: Request, context: AppContextDep) -> Caller | None:
    """A platform admin, with a token of scope read; ``None`` for a scraper on this machine, if the settings allow
    it.
    """
    is_here = request.client is not None and request.client.host in _LOOPBACK
    is_direct = not any(name in request.headers for name in _FORWARDED)
    if context.settings.metrics_open_on_loopback and is_here and is_direct and "authorization" not in request.headers:
        return None
    caller = await _authenticate(request, context)
    if not caller.is_admin and not await run_in_threadpool(_is_platform_admin, context, caller):
        raise Forbidden("The metrics cover all projects: this needs a token of a platform admin.")
    return caller


def _is_platform_admin(context: AppContext, caller: Caller) -> bool:
    with context.read() as work:
        return bool(work.session.execute(select(User.is_admin).where(User.id == caller.user_id)).scalar_one_or_none())


Scraper = Annotated[Caller | None, Depends(_scraper)]


@router.get(
    "/metrics",
    operation_id="get_metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def get_metrics(caller: Scraper, context: AppContextDep) -> Response:  # noqa: ARG001 (authorises)
    """With a platform admin's token, or without a token from the machine itself."""
    return Response(await run_in_threadpool(render, context), media_type=CONTENT_TYPE_LATEST)
