"""Health checks of the platform's parts."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from anyio import move_on_after, to_thread
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session
from trainmaster.wire.admin import HealthView

from api.app.unit_of_work import AppContext
from core.db.leases import TICK, TICK_DONE, marked_at
from core.db.tables import Lease, Node, Orphan
from core.domain.errors import Unavailable
from core.settings import Settings
from core.wakeups import ReportsProblem

OK: Final = "ok"
_IDLE: Final = timedelta(seconds=15)
# Below the timeout of probes: load balancers and kubelets wait for some seconds.
_TIME_LIMIT_S: Final = 1.5


def check(context: AppContext, version: str) -> HealthView:
    """Each part's state: ``ok``, or a sentence about the problem. Never raises."""
    try:
        with context.read() as work:
            work.session.execute(text("select 1"))
            parts = {
                "database": OK,
                "scheduler": _scheduler(work.session, context.settings, work.now),
                "nodes": _nodes(work.session),
                "executor": _executor(work.session),
            }
    except Unavailable as error:
        parts = {"database": error.sentence, "scheduler": "unknown while the database is away"}
        parts |= dict.fromkeys(("nodes", "executor"), "unknown")
    parts["wakeups"] = _wakeup(context)
    return HealthView(
        status="ok" if all(part == OK for part in parts.values()) else "degraded", version=version, parts=parts
    )


async def check_within_limit(context: AppContext, version: str) -> HealthView:
    """Like ``check``, within ``_TIME_LIMIT_S`` whatever hangs.

    It uses threads of its own: when requests block all others, a health check must not queue behind them.
    """
    with move_on_after(_TIME_LIMIT_S):
        return await to_thread.run_sync(check, context, version, limiter=context.probe_threads, abandon_on_cancel=True)
    parts = {"database": "does not answer", **dict.fromkeys(("scheduler", "nodes", "executor"), "unknown")}
    parts["wakeups"] = _wakeup(context, is_asking=False)  # nothing may block here
    return HealthView(status="degraded", version=version, parts=parts)


def shutting_down(version: str) -> HealthView:
    """The health of a process that is shutting down."""
    return HealthView(status="degraded", version=version, parts={"api": "is shutting down; use another API process"})


def _scheduler(session: Session, settings: Settings, now: datetime) -> str:
    done_at = marked_at(session, TICK_DONE)
    if done_at is None:
        return "has not run yet; jobs wait until it does"
    # While nothing changes, ticks are skipped for a while; with many jobs a tick takes a while.
    allowed = max(_IDLE, timedelta(seconds=settings.lease_ttl_s)) + timedelta(seconds=3 * settings.tick_interval_s)
    late = now - done_at
    if late <= allowed:
        return OK
    ago = f"{int(late.total_seconds())} s ago"
    lives = session.get(Lease, TICK)
    if lives is not None and lives.expires_at > now:
        return f"fails since its last successful pass {ago}; jobs wait, and its log has the reason"
    return f"last seen {ago}; jobs wait until it is back"


def _nodes(session: Session) -> str:
    ready = session.execute(select(func.count()).select_from(Node).where(Node.is_ready)).scalar_one()
    return OK if ready else "no node is ready; jobs wait until one is"


def _executor(session: Session) -> str:
    """Orphaned attempts that the last garbage collection found in the executor."""
    kinds = session.scalars(select(Orphan.is_foreign)).all()
    orphans = []
    if foreign := sum(kinds):
        orphans.append(f"{foreign} of another database, which are left running")
    if forgotten := len(kinds) - foreign:
        orphans.append(f"{forgotten} deleted from this database, which are removed within minutes")
    return f"has orphaned attempts: {' and '.join(orphans)}; `GET /api/v1/events` has details" if orphans else OK


def _wakeup(context: AppContext, *, is_asking: bool = True) -> str:
    """Wake-ups are hints: without them the scheduler runs at its interval, not at once."""
    if not isinstance(context.wakeup, ReportsProblem):
        return OK
    return context.wakeup.problem(is_asking=is_asking) or OK
