"""The tasks: thin wrappers. What is unusual is logged here, at the edge; the next ring tries again."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from celery import Celery

from core.bell import TOPIC_RECONCILE, TOPIC_TICK
from core.domain.errors import Unavailable
from scheduler import celery_app
from scheduler.gate import Gate
from scheduler.service import Service

log = structlog.get_logger(__name__)


def register_tasks(app: Celery, service: Service, gate: Gate) -> None:
    """Give ``app`` its tasks over ``service``."""

    def tick() -> None:
        gate.leave(TOPIC_TICK, "")
        _guarded(celery_app.TICK, service.tick)

    def reconcile(attempt_id: str) -> None:
        gate.leave(TOPIC_RECONCILE, attempt_id)
        _guarded(celery_app.RECONCILE, lambda: service.reconcile(attempt_id), attempt=attempt_id)

    def reconcile_due() -> None:
        _guarded(celery_app.RECONCILE_DUE, service.reconcile_due)

    def sync_nodes() -> None:
        _guarded(celery_app.SYNC_NODES, service.sync_nodes)

    def sweep() -> None:
        _guarded(celery_app.SWEEP, service.sweep)

    def housekeep() -> None:
        _guarded(celery_app.HOUSEKEEP, service.housekeep)

    tasks: dict[str, Callable[..., None]] = {
        celery_app.TICK: tick,
        celery_app.RECONCILE: reconcile,
        celery_app.RECONCILE_DUE: reconcile_due,
        celery_app.SYNC_NODES: sync_nodes,
        celery_app.SWEEP: sweep,
        celery_app.HOUSEKEEP: housekeep,
    }
    for name, function in tasks.items():
        app.task(name=name, ignore_result=True)(function)


def _guarded(task: str, work: Callable[[], None], **names: str) -> None:
    try:
        work()
    except Unavailable as away:
        log.warning("task.postponed", task=task, why=away.sentence, **names)
    except Exception:
        log.exception("task.failed", task=task, **names)
