"""Is it alive, and can it serve: for supervisors and load balancers, without a token."""

from __future__ import annotations

from fastapi import Response
from trainmaster.wire.admin import Health

from api.health import service
from api.routing import new_router
from api.version import VERSION
from api.work import PlatformDep

router = new_router("health")


@router.get(
    "/health", operation_id="get_health", summary="How the platform and its parts are", openapi_extra={"security": []}
)
def get_health(platform: PlatformDep) -> Health:
    """200 whenever the process lives; ``status`` says whether all is well."""
    return service.look(platform, VERSION)


@router.get(
    "/ready", operation_id="get_readiness", summary="Whether requests can be served now", openapi_extra={"security": []}
)
def get_readiness(platform: PlatformDep, response: Response) -> Health:
    """503 while the database is away; a scheduler that is away lets jobs wait, but requests are served."""
    health = service.look(platform, VERSION)
    if health.parts["database"] != service.OK:
        response.status_code = 503
        response.headers["Retry-After"] = "2"
    return health
