"""The tasks: thin wrappers. What is unusual is logged here, at the edge; the next ring tries again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
from celery import Celery

from core.domain.errors import IllegalTransition, Unavailable
from core.wakeups import TOPIC_ENDPOINT, TOPIC_FORECAST, TOPIC_MODELS, TOPIC_RECONCILE, TOPIC_STUDY, TOPIC_TICK
from scheduler.messaging import celery_app
from scheduler.messaging.coalescing import Gate
from scheduler.process import Logged, Service
from scheduler.process_metrics import Meter

log = structlog.get_logger(__name__)

# What the key of a task is of, where that is no attempt.
_KEYS: Final = {celery_app.STUDY: "study", celery_app.ENDPOINT: "endpoint"}


class Tasks:
    """What can be asked of ``service``, by the names of the tasks. ``do`` never raises."""

    def __init__(self, service: Service, meter: Meter) -> None:
        self._meter = meter
        self._is_postponing = False
        self._work: dict[str, Callable[..., None]] = {
            celery_app.TICK: service.tick,
            celery_app.FORECAST: service.forecast,
            celery_app.RECONCILE: service.reconcile,
            celery_app.STUDY: service.study,
            celery_app.STUDIES_DUE: service.studies_due,
            celery_app.MODELS: service.models,
            celery_app.ENDPOINT: service.endpoint,
            celery_app.ENDPOINTS_DUE: service.endpoints_due,
            celery_app.RECONCILE_DUE: service.reconcile_due,
            celery_app.SYNC_NODES: service.sync_nodes,
            celery_app.SWEEP: service.sweep,
            celery_app.HOUSEKEEP: service.housekeep,
            celery_app.LOOK_AHEAD: service.look_ahead,
        }

    def do(self, task: str, key: str = "") -> None:
        """One run; ``key``: which attempt, study or endpoint, for the tasks that look at one."""
        outcome = "failed"
        try:
            with self._meter.timed(task):
                self._work[task](*((key,) if key else ()))
            outcome, self._is_postponing = "done", False
        except Unavailable as away:
            outcome = "postponed"
            if not self._is_postponing:  # told once, not with every ring of an outage
                log.warning("task.postponed", task=task, why=away.sentence)
            self._is_postponing = True
        except Logged:
            pass  # by whoever knows which of them failed
        except Exception as error:
            about: dict[str, object] = {_KEYS.get(task, "attempt"): key} if key else {}
            if isinstance(error, IllegalTransition):
                about["history"] = [{name: str(value) for name, value in line.items()} for line in error.history]
            log.exception("task.failed", task=task, **about)
        self._meter.tasks.labels(task, outcome).inc()


def register_tasks(app: Celery, tasks: Tasks, gate: Gate, heard: Callable[[str], None]) -> None:
    """Give ``app`` its tasks. ``heard`` learns of each that a message brought."""

    def keyed(name: str, topic: str) -> Callable[..., None]:
        def run(key: str = "") -> None:
            gate.leave(topic, key)
            heard(name)
            tasks.do(name, key)

        return run

    for name, topic in (
        (celery_app.TICK, TOPIC_TICK),
        (celery_app.FORECAST, TOPIC_FORECAST),
        (celery_app.RECONCILE, TOPIC_RECONCILE),
        (celery_app.STUDY, TOPIC_STUDY),
        (celery_app.MODELS, TOPIC_MODELS),
        (celery_app.ENDPOINT, TOPIC_ENDPOINT),
        *((name, "") for name in celery_app.CARE),
    ):
        app.task(name=name, ignore_result=True)(keyed(name, topic))
