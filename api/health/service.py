"""How the platform's parts are."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from anyio import move_on_after, to_thread
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session
from trainmaster.wire.admin import Health

from api.app.unit_of_work import AppContext
from core.db.leases import TICK, TICK_DONE, marked_at
from core.db.tables import Lease, Node, Orphan
from core.domain.errors import Unavailable
from core.settings import Settings
from core.wakeups import ReportsProblem

OK: Final = "ok"
_IDLE: Final = timedelta(seconds=15)
# Below the patience of those who probe: load balancers and kubelets are told to wait for some seconds.
_LOOK_WITHIN_S: Final = 1.5


def look(context: AppContext, version: str) -> Health:
    """Each part's state, a sentence where it is not well. Never raises."""
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
    parts["bell"] = _bell(context)
    return Health(
        status="ok" if all(part == OK for part in parts.values()) else "degraded", version=version, parts=parts
    )


async def look_within(context: AppContext, version: str) -> Health:
    """The same as ``look``, within ``_LOOK_WITHIN_S`` whatever hangs.

    In threads of its own: when requests hold all the others, who asks for the reason must not wait in line with them.
    """
    with move_on_after(_LOOK_WITHIN_S):
        return await to_thread.run_sync(look, context, version, limiter=context.probe_threads, abandon_on_cancel=True)
    parts = {"database": "does not answer", **dict.fromkeys(("scheduler", "nodes", "executor"), "unknown")}
    parts["bell"] = _bell(context, is_asking=False)  # here nothing may wait
    return Health(status="degraded", version=version, parts=parts)


def leaving(version: str) -> Health:
    """What a process says that was asked to end."""
    return Health(status="degraded", version=version, parts={"api": "is going down; ask another one"})


def _scheduler(session: Session, settings: Settings, now: datetime) -> str:
    done_at = marked_at(session, TICK_DONE)
    if done_at is None:
        return "has not run yet; jobs wait until it does"
    # Without news a tick is left out for a while; with many jobs it takes one.
    allowed = max(_IDLE, timedelta(seconds=settings.lease_ttl_s)) + timedelta(seconds=3 * settings.tick_interval_s)
    late = now - done_at
    if late <= allowed:
        return OK
    ago = f"{int(late.total_seconds())} s ago"
    lives = session.get(Lease, TICK)
    if lives is not None and lives.expires_at > now:
        return f"fails since its last good look at the queue {ago}; jobs wait, and its log says why"
    return f"last seen {ago}; jobs wait until it is back"


def _nodes(session: Session) -> str:
    ready = session.execute(select(func.count()).select_from(Node).where(Node.is_ready)).scalar_one()
    return OK if ready else "no node is ready; jobs wait until one is"


def _executor(session: Session) -> str:
    """What the last sweep found there that this database does not know."""
    kinds = session.scalars(select(Orphan.is_foreign)).all()
    told = []
    if foreign := sum(kinds):
        told.append(f"{foreign} of another database, which are left alone and keep what they have")
    if forgotten := len(kinds) - foreign:
        told.append(f"{forgotten} that this database has forgotten, which are removed within minutes")
    return f"holds attempts: {' and '.join(told)}; `GET /api/v1/events` says more" if told else OK


def _bell(context: AppContext, *, is_asking: bool = True) -> str:
    """The bell is a hint: without it a tick comes at its interval, not at once."""
    if not isinstance(context.wakeup, ReportsProblem):
        return OK
    return context.wakeup.problem(is_asking=is_asking) or OK
