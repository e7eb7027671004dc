"""``create_app(settings)``: the HTTP boundary of the platform, with all its routers and its OpenAPI document."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from anyio.to_thread import current_default_thread_limiter
from fastapi import APIRouter, Depends, FastAPI
from fastapi.openapi.utils import get_openapi

from api import VERSION
from api.app import audit_changes
from api.app.cache import BudgetCache, ExpiringCache, VolumeCache
from api.app.fair_use import FairUse
from api.app.graceful_shutdown import GracefulShutdown
from api.app.unit_of_work import AppContext
from api.auth import CALLER_LIMIT, CallerCache, forget_callers
from api.checkpoints.contents import CheckpointInspector
from api.endpoints.proxy import Proxy
from api.http import problems
from api.http.audit import AuditLog, AuditMiddleware
from api.http.fair_use import FairUseMiddleware
from api.http.middleware import Envelope, RequestLimits, ResponseEncoding, is_prediction, is_upload
from api.oidc.flows import LoginFlows
from api.pages import page
from api.prometheus.recorder import RequestMetrics
from api.protocols.gcs import xml_api
from api.protocols.kit.vertex_table import environment_entries
from api.protocols.optuna.routes import Storages
from api.tensorboard.links import VIEW_LIMIT, TensorBoardViewCache
from api.tensorboard.viewers import Viewers
from core.db.engine import SessionFactory, make_engine, make_sessions
from core.settings import Settings
from core.tokens import platform_key
from core.wakeups import Wakeup, make_wakeup

PREFIX: Final = "/api/v1"

# Modules under /api/v1; each has a `router`. Requests are matched in this order, so the busiest routes come first.
NOUNS: Final = (
    "runtime",
    "jobs.routes",
    "studies.routes",
    "automl.routes",
    "endpoints.routes",
    "protocols.optuna.routes",
    "forecasts.routes",
    "queue",
    "attempts",
    "events.routes",
    "audit.routes",
    "logs.routes",
    "metrics.routes",
    "checkpoints.routes",
    "models.routes",
    "files",
    "jobs.code",
    "archives",
    "nodes",
    "volumes.routes",
    "quotas.routes",
    "retention",
    "usage.routes",
    "usage.prices",
    "outgoing.webhooks",
    "outgoing.notifications",
    "projects",
    "service_accounts.routes",
    "policy.routes",
    "vertex_table",
    "reservations",
    "forecasts.simulations",
    "secrets",
    "users",
    "tokens",
    "spec",
    "login",
    "oidc.routes",
    "health",
)
# At the root.
ROOTS: Final = (
    "prometheus.routes",
    "protocols.mlflow.routes",
    "protocols.gcs.routes",
    "protocols.vertex.routes",
    "protocols.kubeflow.routes",
    "protocols.ray.routes",
    "tensorboard.routes",
    "protocols.scim.routes",
    "pages",
)
_DESCRIPTION: Final = (
    "Submit, watch and steer distributed training jobs. Errors are `application/problem+json` with a stable `code`. "
    "Lists are paged by opaque cursors. Programs send `Authorization: Bearer <token>`."
)


def include_all(app: FastAPI) -> None:
    for noun in NOUNS:
        _include(app, noun, PREFIX)
    for noun in ROOTS:
        _include(app, noun, "")


def _include(app: FastAPI, noun: str, prefix: str) -> None:
    router: APIRouter = importlib.import_module(f"api.{noun}").router
    changes_callers = noun in ("projects", "service_accounts.routes", "users", "tokens", "protocols.scim.routes")
    dependencies = [Depends(forget_callers, scope="function")] if changes_callers else []
    app.include_router(router, prefix=prefix, dependencies=dependencies)


def _utc_now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 (the edge reads the clock)


def create_app(
    settings: Settings,
    *,
    sessions: SessionFactory | None = None,
    wakeup: Wakeup | None = None,
    clock: Callable[[], datetime] = _utc_now,
) -> FastAPI:
    """The application. Opens no connection before the first request; the tables must exist (``python -m migrations``).

    Raises:
        BadSettings: the environment's mapping of Vertex AI's names, or its login providers, cannot be parsed.
    """
    if sessions is None:
        engine = make_engine(settings.resolved_database_url, pool_size=settings.database_pool_size)
        sessions = make_sessions(engine)
    audit_changes.listen(sessions)
    audit_log = AuditLog(sessions, clock)
    environment_entries(settings)  # a mistake shows at start, not when a user submits a job
    request_metrics = RequestMetrics()
    shutdown = GracefulShutdown(drain_s=settings.drain_s)
    context = AppContext(
        settings=settings,
        sessions=sessions,
        wakeup=wakeup or make_wakeup(settings),
        clock=clock,
        key=platform_key(settings),
        request_metrics=request_metrics,
        volumes=VolumeCache(sessions),
        budgets=BudgetCache(sessions),
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # A handler holds a thread and a connection: more threads would only wait for connections.
        current_default_thread_limiter().total_tokens = 2 * settings.database_pool_size
        shutdown.watch_signals()
        async with app.state.viewers.lifetime(), app.state.proxy.lifetime(), audit_log.lifetime():
            yield
        app.state.checkpoint_inspector.close()
        app.state.optuna.close()
        context.sessions.kw["bind"].dispose()

    app = FastAPI(
        title="Trainmaster",
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.context = context
    app.state.callers = CallerCache(CALLER_LIMIT)
    app.state.tensorboard_views = TensorBoardViewCache(VIEW_LIMIT)
    app.state.viewers = Viewers(settings)
    app.state.proxy = Proxy(context)
    app.state.checkpoint_inspector = CheckpointInspector(settings.home / "inspection")
    app.state.optuna = Storages(settings)
    app.state.scrapers = ExpiringCache[bool](CALLER_LIMIT)
    app.state.fair_use = FairUse(settings)
    app.state.oidc = LoginFlows(settings, context.key, clock)
    app.state.shutdown = shutdown
    app.state.audit_log = audit_log
    problems.install(app, page, xml_api.refusal)
    # The last added is the outermost.
    app.add_middleware(AuditMiddleware, audit_log=audit_log)
    app.add_middleware(ResponseEncoding)
    app.add_middleware(FairUseMiddleware, fair_use=app.state.fair_use, is_upload=is_upload, is_proxied=is_prediction)
    app.add_middleware(RequestLimits)
    app.add_middleware(Envelope, request_metrics=request_metrics, shutdown=shutdown)
    include_all(app)
    app.openapi = partial(_describe, app)  # type: ignore[method-assign]  # the framework's hook for a custom document
    return app


def _describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, made once per application."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=_DESCRIPTION, routes=app.routes)
        components = schema.setdefault("components", {})
        components["securitySchemes"] = {
            "token": {
                "type": "http",
                "scheme": "bearer",
                "description": "A user's token, or an attempt's for reports.",
            },
            "session": {"type": "apiKey", "in": "cookie", "name": "trainmaster_session"},
        }
        schema["security"] = [{"token": []}, {"session": []}]
        app.openapi_schema = schema
    return app.openapi_schema
