"""The scrape of Prometheus: metrics from the database, and those of this process."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated, Final

from fastapi import Depends, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import case, func, select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from api.app.cache import ExpiringCache
from api.app.token_scopes import Scope
from api.app.unit_of_work import AppContext, AppContextDep, UnitOfWork
from api.auth import Caller, require
from api.http.routing import new_router
from api.prometheus.limits import home_space, project_limits, volume_space
from core.db.leases import BEAT, TICK, TICK_DONE, marked_at
from core.db.tables import Job, Node, Replica, User
from core.domain.errors import Forbidden, TrainmasterError, Unavailable
from core.domain.jobs.states import JobState, ReplicaState
from core.tokens import token_digest

router = new_router("metrics")

_authenticate = require(Scope.READ)
_SCRAPER_TTL: Final = timedelta(hours=1)


async def _scraper(request: Request, context: AppContextDep) -> Caller | None:
    """A platform admin, with a token of scope read.

    ``None``: a scraper with the token of the settings, or, while the database is away, with a token that was a platform
    admin's within the hour.

    Nothing is open to this machine: its jobs and its proxies share the loopback address.
    """
    own = context.settings.metrics_token.get_secret_value()
    sent = request.headers.get("authorization", "")
    if own and hmac.compare_digest(sent.encode("utf-8", "surrogateescape"), f"Bearer {own}".encode()):
        return None
    cache: ExpiringCache[bool] = request.app.state.scrapers
    digest, now = token_digest(sent), context.clock()
    try:
        caller = await _authenticate(request, context)
    except Unavailable:
        # The alert on this very outage needs an answer, which holds nothing but what this process counts.
        if cache.get(digest, now):
            return None
        raise
    if not caller.is_admin and not await run_in_threadpool(_is_platform_admin, context, caller):
        raise Forbidden("The metrics cover all projects: this needs a token of a platform admin.")
    cache.put(digest, True, now + _SCRAPER_TTL)
    return caller


def _is_platform_admin(context: AppContext, caller: Caller) -> bool:
    if caller.project_ids_limit is not None:
        return False
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
    """With a platform admin's token, or with that of `TRAINMASTER_METRICS_TOKEN`."""
    return Response(await run_in_threadpool(_render, context), media_type=CONTENT_TYPE_LATEST)


def _render(context: AppContext) -> bytes:
    """The exposition text. While the database is away: the processes' own metrics, and ``database_up 0``."""
    try:
        with context.read() as work:
            families = [*_families(work), *project_limits(work, context)]
        families += volume_space(context)
    except TrainmasterError:
        families = [_gauge("database_up", "Whether the database answers.", 0)]
    families += home_space(context)
    registry = CollectorRegistry()
    own = {family.name: family for family in context.request_metrics.collect()}
    for family in context.request_metrics.other_process():
        own[family.name].samples.extend(family.samples)
    registry.register(_Ready([*families, *own.values()]))
    return generate_latest(registry)


class _Ready(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def _families(work: UnitOfWork) -> list[GaugeMetricFamily]:
    return [
        _gauge("database_up", "Whether the database answers.", 1),
        _jobs(work.session),
        _replicas(work.session),
        *_queue(work.session, work.now),
        *_leases(work.session, work.now),
        *_nodes(work.session),
    ]


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"trainmaster_{name}", text, value=value)


def _jobs(session: Session) -> GaugeMetricFamily:
    family = GaugeMetricFamily("trainmaster_jobs", "Jobs by state, deleted ones apart.", labels=["state"])
    rows = session.execute(select(Job.state, func.count()).where(Job.deleted_at.is_(None)).group_by(Job.state)).all()
    counts = {row[0]: row[1] for row in rows}
    for state in JobState:  # a state without jobs is 0, not absent: alerts need both
        family.add_metric([state.value], counts.get(state.value, 0))
    return family


def _replicas(session: Session) -> GaugeMetricFamily:
    family = GaugeMetricFamily("trainmaster_replicas", "Replicas that hold resources, by state.", labels=["state"])
    live = [state.value for state in ReplicaState if not state.is_terminal]
    query = select(Replica.state, func.count()).where(Replica.state.in_(live)).group_by(Replica.state)
    counts = {row[0]: row[1] for row in session.execute(query)}
    for state in live:
        family.add_metric([state], counts.get(state, 0))
    return family


def _queue(session: Session, now: datetime) -> list[GaugeMetricFamily]:
    oldest = session.execute(select(func.min(Job.queued_at)).where(Job.state == JobState.QUEUED)).scalar_one()
    age = 0.0 if oldest is None else max(0.0, (now - oldest).total_seconds())
    return [_gauge("queue_age_seconds", "Age of the job that has waited longest, 0 when none waits.", age)]


def _leases(session: Session, now: datetime) -> list[GaugeMetricFamily]:
    found = []
    expires = marked_at(session, TICK)
    if expires is not None:
        late = max(0.0, (now - expires).total_seconds())
        found.append(
            _gauge("tick_lease_expired_seconds", "Time since the tick's lease ran out, 0 while it is held.", late)
        )
    leads = marked_at(session, BEAT)
    if leads is not None:
        late = max(0.0, (now - leads).total_seconds())
        found.append(
            _gauge(
                "beat_lease_expired_seconds",
                "Time since the last beat leader's lease ran out, 0 while there is a leader.",
                late,
            )
        )
    done_at = marked_at(session, TICK_DONE)
    if done_at is not None:
        age = max(0.0, (now - done_at).total_seconds())
        found.append(_gauge("tick_done_age_seconds", "Time since the last completed tick.", age))
    return found


def _nodes(session: Session) -> list[GaugeMetricFamily]:
    ready = func.coalesce(func.sum(case((Node.is_ready, 1), else_=0)), 0)
    cordoned = func.coalesce(func.sum(case((Node.is_cordoned, 1), else_=0)), 0)
    quarantined, suspected = func.count(Node.quarantined_at), func.count(Node.suspicion)
    row = session.execute(select(func.count(), ready, cordoned, quarantined, suspected).select_from(Node)).one()
    family = GaugeMetricFamily("trainmaster_nodes", "Nodes by condition.", labels=["condition"])
    family.add_metric(["ready"], row[1])
    family.add_metric(["not_ready"], row[0] - row[1])
    family.add_metric(["cordoned"], row[2])
    family.add_metric(["quarantined"], row[3])
    family.add_metric(["suspected"], row[4])
    return [family]
