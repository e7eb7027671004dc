"""The tasks: thin wrappers. Errors are logged here, at the edge; the next message tries again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
from celery import Celery

from core.domain.errors import IllegalTransition, Unavailable
from core.telemetry import task_span
from core.wakeups import TASK_OF_TOPIC
from scheduler.messaging import celery_app
from scheduler.messaging.fallback import Fallback
from scheduler.messaging.wakeups import AppWakeup
from scheduler.process import AlreadyReported, SchedulerProcess
from scheduler.process_metrics import ProcessMetrics

log = structlog.get_logger(__name__)

# The kind of object that a task's key names, where that is no attempt.
_KEYS: Final = {celery_app.STUDY: "study", celery_app.ENDPOINT: "endpoint"}


class Tasks:
    """The work of ``process`` by the names of the tasks. ``run`` never raises."""

    def __init__(self, process: SchedulerProcess, metrics: ProcessMetrics) -> None:
        self._metrics = metrics
        self._is_postponing = False
        self._work: dict[str, Callable[..., None]] = {
            celery_app.TICK: process.tick,
            celery_app.FORECAST: process.answer_questions,
            celery_app.RECONCILE: process.reconcile,
            celery_app.STUDY: process.studies.reconcile,
            celery_app.STUDIES_DUE: process.studies.notify_due,
            celery_app.MODELS: process.registrar.start,
            celery_app.WEBHOOKS: process.start_outgoing,
            celery_app.ENDPOINT: process.endpoints.reconcile,
            celery_app.ENDPOINTS_DUE: process.endpoints.notify_due,
            celery_app.RECONCILE_DUE: process.reconcile_due,
            celery_app.SYNC_NODES: process.sync_nodes,
            celery_app.GC_EXECUTOR: process.gc_executor,
            celery_app.COLLECT_GARBAGE: process.collect_garbage,
            celery_app.MEASURE_STORAGE: process.measure_projects,
            celery_app.CHAIN_AUDIT: process.chain_audit,
            celery_app.START_FORECASTS: process.write_start_forecasts,
            celery_app.EXPORT_TRACES: process.export_traces,
        }

    def run(self, task: str, key: str = "") -> None:
        """Run a task once; ``key``: the id of the attempt, study or endpoint, for the tasks that reconcile one."""
        outcome = "failed"
        try:
            with self._metrics.timed(task), task_span(task, key):
                self._work[task](*((key,) if key else ()))
            outcome, self._is_postponing = "done", False
        except Unavailable as away:
            outcome = "postponed"
            if not self._is_postponing:  # logged once, not with every message during an outage
                log.warning("task.postponed", task=task, why=away.sentence)
            self._is_postponing = True
        except AlreadyReported:
            pass  # where it was known which of them failed
        except Exception as error:
            about: dict[str, object] = {_KEYS.get(task, "attempt"): key} if key else {}
            if isinstance(error, IllegalTransition):
                about["history"] = [{name: str(value) for name, value in line.items()} for line in error.history]
            log.exception("task.failed", task=task, **about)
        self._metrics.tasks.labels(task, outcome).inc()


def register_tasks(app: Celery, tasks: Tasks, wakeup: AppWakeup, fallback: Fallback) -> None:
    """Give ``app`` its tasks."""

    def keyed(name: str, topic: str) -> Callable[..., None]:
        def run(key: str = "") -> None:
            wakeup.note_message(topic, key)
            fallback.note_message(name)
            tasks.run(name, key)

        return run

    for topic, name in (*TASK_OF_TOPIC.items(), *(("", name) for name in celery_app.MAINTENANCE_TASKS)):
        app.task(name=name, ignore_result=True)(keyed(name, topic))
