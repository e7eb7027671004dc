from __future__ import annotations

from typing import Final

from fastapi import Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool

from api.auth import authenticate
from api.metrics.service import render
from api.routing import new_router
from api.work import PlatformDep

router = new_router("metrics")

# A scraper on the same machine needs no token. Behind a proxy uvicorn puts the real client here (X-Forwarded-For).
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})


@router.get(
    "/metrics",
    operation_id="get_metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def get_metrics(request: Request, platform: PlatformDep) -> Response:
    """With any valid token, or without one from the machine itself."""
    if request.client is None or request.client.host not in _LOOPBACK:
        await authenticate(request, platform)
    return Response(await run_in_threadpool(render, platform), media_type=CONTENT_TYPE_LATEST)
