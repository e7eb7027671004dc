"""Is it alive, and can it serve: for supervisors and load balancers, without a token."""

from __future__ import annotations

from fastapi import Request, Response
from trainmaster.wire.admin import Alive, Health

from api.app.graceful_shutdown import GracefulShutdown
from api.app.unit_of_work import AppContextDep
from api.health import service
from api.http.routing import new_router
from api.version import VERSION

router = new_router("health")


@router.get("/live", operation_id="get_liveness", summary="Whether the process lives", openapi_extra={"security": []})
async def get_liveness() -> Alive:
    """200 while the process can answer at all, whatever else is away: starting it anew would not bring that back."""
    return Alive(version=VERSION)


@router.get(
    "/health", operation_id="get_health", summary="How the platform and its parts are", openapi_extra={"security": []}
)
async def get_health(context: AppContextDep) -> Health:
    """200 whenever the process lives; ``status`` says whether all is well."""
    return await service.look_within(context, VERSION)


@router.get(
    "/ready", operation_id="get_readiness", summary="Whether requests can be served now", openapi_extra={"security": []}
)
async def get_readiness(request: Request, context: AppContextDep, response: Response) -> Health:
    """503 while the database is away and from the moment that this process is asked to end.

    A scheduler or a broker that is away lets jobs wait, but requests are served.
    """
    shutdown: GracefulShutdown = request.app.state.shutdown
    if shutdown.is_draining:
        health = service.leaving(VERSION)
    else:
        health = await service.look_within(context, VERSION)
    if shutdown.is_draining or health.parts["database"] != service.OK:
        response.status_code = 503
        response.headers["Retry-After"] = "2"
    return health
