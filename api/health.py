"""Liveness, readiness and health of the platform's parts, for supervisors and load balancers; no token is needed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from anyio import move_on_after, to_thread
from fastapi import Request, Response
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session
from trainmaster.version import revision
from trainmaster.wire.admin import Alive, HealthView

from api import VERSION
from api.app.graceful_shutdown import shutdown_of
from api.app.unit_of_work import AppContext, AppContextDep
from api.http.routing import new_router
from core.db.leases import TICK, TICK_DONE, marked_at
from core.db.repositories.events import DISK_OK, DISK_WARNING, last_event_of
from core.db.tables import Lease, Node, Orphan
from core.domain.errors import Unavailable
from core.settings import Settings
from core.wakeups import ReportsProblem

router = new_router("health")

_OK: Final = "ok"
_IDLE: Final = timedelta(seconds=15)
# Below the timeout of probes: load balancers and kubelets wait for some seconds.
_TIME_LIMIT_S: Final = 1.5


@router.get("/live", operation_id="get_liveness", summary="Liveness of the process", openapi_extra={"security": []})
async def get_liveness() -> Alive:
    """200 while the process can answer. Other parts that are away do not matter: a restart would not bring them
    back.
    """
    return Alive(version=VERSION, revision=revision())


@router.get(
    "/health", operation_id="get_health", summary="Health of the platform's parts", openapi_extra={"security": []}
)
async def get_health(context: AppContextDep) -> HealthView:
    """Always 200; `status` is `ok` or `degraded`, and `parts` has the state of each part."""
    return await _check_within_limit(context)


@router.get(
    "/ready", operation_id="get_readiness", summary="Readiness to serve requests", openapi_extra={"security": []}
)
async def get_readiness(request: Request, context: AppContextDep, response: Response) -> HealthView:
    """503 while the database is away, and while this process shuts down.

    If the scheduler or the broker is away, jobs wait, but requests are served.
    """
    shutdown = shutdown_of(request)
    if shutdown.is_draining:
        parts = {"api": "is shutting down; use another API process"}
        health = HealthView(status="degraded", version=VERSION, revision=revision(), parts=parts)
    else:
        health = await _check_within_limit(context)
    if shutdown.is_draining or health.parts["database"] != _OK:
        response.status_code = 503
        response.headers["Retry-After"] = "2"
    return health


def _check(context: AppContext) -> HealthView:
    """Each part's state: ``ok``, or a sentence about the problem. Never raises."""
    try:
        with context.read() as work:
            work.session.execute(text("select 1"))
            parts = {
                "database": _OK,
                "scheduler": _scheduler(work.session, context.settings, work.now),
                "nodes": _nodes(work.session),
                "executor": _executor(work.session),
                "disk": _disk(work.session),
            }
    except Unavailable as error:
        parts = {"database": error.sentence, "scheduler": "unknown while the database is away"}
        parts |= dict.fromkeys(("nodes", "executor", "disk"), "unknown")
    parts["wakeups"] = _wakeup(context)
    return HealthView(
        status="ok" if all(part == _OK for part in parts.values()) else "degraded",
        version=VERSION,
        revision=revision(),
        parts=parts,
    )


async def _check_within_limit(context: AppContext) -> HealthView:
    """Like ``_check``, within ``_TIME_LIMIT_S`` whatever hangs.

    It uses threads of its own: when requests block all others, a health check must not queue behind them.
    """
    with move_on_after(_TIME_LIMIT_S):
        return await to_thread.run_sync(_check, context, limiter=context.probe_threads, abandon_on_cancel=True)
    parts = {"database": "does not answer", **dict.fromkeys(("scheduler", "nodes", "executor", "disk"), "unknown")}
    parts["wakeups"] = _wakeup(context, is_asking=False)  # nothing may block here
    return HealthView(status="degraded", version=VERSION, revision=revision(), parts=parts)


def _scheduler(session: Session, settings: Settings, now: datetime) -> str:
    done_at = marked_at(session, TICK_DONE)
    if done_at is None:
        return "has not run yet; jobs wait until it does"
    # While nothing changes, ticks are skipped for a while; with many jobs a tick takes a while.
    allowed = max(_IDLE, timedelta(seconds=settings.lease_ttl_s)) + timedelta(seconds=3 * settings.tick_interval_s)
    late = now - done_at
    if late <= allowed:
        return _OK
    ago = f"{int(late.total_seconds())} s ago"
    lives = session.get(Lease, TICK)
    if lives is not None and lives.expires_at > now:
        return f"fails since its last successful pass {ago}; jobs wait, and its log has the reason"
    return f"last seen {ago}; jobs wait until it is back"


def _nodes(session: Session) -> str:
    ready = session.execute(select(func.count()).select_from(Node).where(Node.is_ready)).scalar_one()
    return _OK if ready else "no node is ready; jobs wait until one is"


def _executor(session: Session) -> str:
    """Orphaned attempts that the last garbage collection found in the executor."""
    kinds = session.scalars(select(Orphan.is_foreign)).all()
    orphans = []
    if foreign := sum(kinds):
        orphans.append(f"{foreign} of another database, which are left running")
    if forgotten := len(kinds) - foreign:
        orphans.append(f"{forgotten} deleted from this database, which are removed within minutes")
    return f"has orphaned attempts: {' and '.join(orphans)}; `GET /api/v1/events` has details" if orphans else _OK


def _disk(session: Session) -> str:
    """What the scheduler's last look at the disks found."""
    last = last_event_of(session, (DISK_WARNING, DISK_OK))
    return last.reason if last is not None and last.kind == DISK_WARNING else _OK


def _wakeup(context: AppContext, *, is_asking: bool = True) -> str:
    """Wake-ups are hints: without them the scheduler runs at its interval, not at once."""
    if not isinstance(context.wakeup, ReportsProblem):
        return _OK
    return context.wakeup.problem(is_asking=is_asking) or _OK
