"""Liveness, readiness and health, for supervisors and load balancers; no token is needed."""

from __future__ import annotations

from fastapi import Request, Response
from trainmaster.wire.admin import Alive, HealthView

from api.app.graceful_shutdown import GracefulShutdown
from api.app.unit_of_work import AppContextDep
from api.health import service
from api.http.routing import new_router
from api.version import VERSION

router = new_router("health")


@router.get("/live", operation_id="get_liveness", summary="Liveness of the process", openapi_extra={"security": []})
async def get_liveness() -> Alive:
    """200 while the process can answer. Other parts that are away do not matter: a restart would not bring them
    back.
    """
    return Alive(version=VERSION)


@router.get(
    "/health", operation_id="get_health", summary="Health of the platform's parts", openapi_extra={"security": []}
)
async def get_health(context: AppContextDep) -> HealthView:
    """Always 200; `status` is `ok` or `degraded`, and `parts` has the state of each part."""
    return await service.check_within_limit(context, VERSION)


@router.get(
    "/ready", operation_id="get_readiness", summary="Readiness to serve requests", openapi_extra={"security": []}
)
async def get_readiness(request: Request, context: AppContextDep, response: Response) -> HealthView:
    """503 while the database is away, and while this process shuts down.

    If the scheduler or the broker is away, jobs wait, but requests are served.
    """
    shutdown: GracefulShutdown = request.app.state.shutdown
    if shutdown.is_draining:
        health = service.shutting_down(VERSION)
    else:
        health = await service.check_within_limit(context, VERSION)
    if shutdown.is_draining or health.parts["database"] != service.OK:
        response.status_code = 503
        response.headers["Retry-After"] = "2"
    return health
