"""The composition root of a scheduler process: everything that it has, wired from the settings."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import structlog

from core.db.engine import make_engine, make_sessions, unit_of_work
from core.domain.errors import ExecutorTryAgain, IllegalTransition, Unavailable
from core.domain.ids import AttemptId
from core.outgoing.networks import OutboundNetworks
from core.settings import Settings
from core.tokens import platform_key
from core.wakeups import TOPIC_RECONCILE, Wakeup
from core.work_queue import SingleFlight, WorkQueue
from core.worker_packages import own_server
from scheduler.attempt_watch import AttemptWatch
from scheduler.control.attempts.reconcile_result import ReconcileResult
from scheduler.control.attempts.reconciler import Reconciler
from scheduler.control.attempts.storage.transaction_batcher import ResultOrError
from scheduler.control.context import ControlContext
from scheduler.control.maintenance.audit import chain_audit
from scheduler.control.maintenance.budgets import check_budgets
from scheduler.control.maintenance.gc import collect_garbage, gc_executor
from scheduler.control.maintenance.nodes import sync_nodes
from scheduler.control.maintenance.resync import SAFETY_RESYNC, STEADY_RESYNC, due_attempts, find_drifted
from scheduler.control.maintenance.storage import StorageMeter
from scheduler.control.maintenance.traces import export_traces
from scheduler.control.outgoing.notifications import Notifier
from scheduler.control.outgoing.webhooks import WebhookDeliverer
from scheduler.control.planning.start_forecasts import StartForecastWriter
from scheduler.control.planning.tick import Ticker
from scheduler.control.questions.answers import QuestionAnswerer
from scheduler.control.questions.simulations import SimulationRunner
from scheduler.control.registrar import Registrar
from scheduler.control.serving.endpoint_loop import EndpointLoop
from scheduler.control.studies.study_loop import StudyLoop
from scheduler.control.transitions import expire_waiting
from scheduler.executor_factory import make_executor, refused_volumes
from scheduler.messaging.celery_app import RECONCILE
from scheduler.messaging.wakeups import Timers
from scheduler.tick_runner import TickRunner
from scheduler.tuning.proposers import Proposers

log = structlog.get_logger(__name__)

# The embedded scheduler is alone on its data folder, so its successor may take its leases over at once.
_EMBEDDED_HOLDER: Final = "embedded"

# Starting a replica is mostly waiting; more at once only compete for the cores.
_CREATE_AT_ONCE: Final = 4

# So many of a worker's threads reconcile attempts; another one consumes messages meanwhile, so that many attempts are
# reconciled in one batch. An engine answers slowly, and a thread is free again with the slowest attempt of its batch.
_RECONCILE_WORKERS: Final = 3
_RECONCILE_BATCH: Final = 32
# Seconds. An engine that takes longer may never answer.
_STUCK_AFTER_S: Final = 60.0

# Seconds until a wake-up for an attempt counts as lost.
_NOTIFY_AGAIN_S: Final = 5.0


def utc_now() -> datetime:
    """The wall clock: the only place where the scheduler reads it."""
    return datetime.now(UTC)  # noqa: TID251 - the edge


class AlreadyReported(Exception):
    """A task failed, and the failure has been logged where its cause is known."""


class SchedulerProcess:
    """The control loop of one process, and the work of each task. Methods do not raise for what is expected."""

    def __init__(self, settings: Settings, wakeup: Wakeup) -> None:
        self.settings = settings
        setup = make_executor(settings)
        self.engine = make_engine(settings.resolved_database_url, pool_size=settings.database_pool_size)
        self.control = ControlContext(
            sessions=make_sessions(self.engine),
            executor=setup.executor,
            wakeup=wakeup,
            clock=utc_now,
            holder=_EMBEDDED_HOLDER if settings.is_embedded_broker else new_holder(),
            secret_key=platform_key(settings),
            api_url=settings.replica_api_url or settings.api_url,
            region=settings.region,
            archive_dir=settings.archive_dir,
            lease_ttl=timedelta(seconds=settings.lease_ttl_s),
            node_grace=timedelta(seconds=settings.node_grace_s),
            create_at_once=_CREATE_AT_ONCE,
            default_volume=settings.default_volume,
            output_owner=settings.folder_owner,
            job_users=setup.job_users,
        )
        self.reconciler = Reconciler(self.control)
        self.ticker = Ticker(self.control)
        self.question_answerer = QuestionAnswerer(self.control)
        self.simulations = SimulationRunner(self.control)
        self.studies = StudyLoop(self.control, Proposers(loads_ahead=True))
        self.registrar = Registrar(self.control, limit_bytes=settings.model_limit_bytes)
        self.storage_meter = StorageMeter(self.control)
        self.webhooks = WebhookDeliverer(self.control, OutboundNetworks(settings.outbound_networks))
        self.notifier = Notifier(self.control, settings.outbound_networks)
        self.timers = Timers(wakeup.notify, utc_now)
        self.endpoints = EndpointLoop(
            self.control, own_server() if settings.executor == "process" else None, set_timer=self.timers.set
        )
        self.start_forecasts = StartForecastWriter(self.control)
        self.watch = AttemptWatch(
            setup.executor, setup.watch_every, lambda attempt_id: wakeup.notify(TOPIC_RECONCILE, attempt_id), utc_now
        )
        self._reconciles = WorkQueue(
            self._reconcile_batch, workers=_RECONCILE_WORKERS, batch_size=_RECONCILE_BATCH, stuck_after_s=_STUCK_AFTER_S
        )
        tick_runner = TickRunner(self.ticker.tick, partial(self.timers.set, max_ahead=None), utc_now)
        # A tick may take longer than a minute.
        self._ticks = SingleFlight(tick_runner.run)
        self._answers = SingleFlight(self._answer)
        self._start_forecasts = SingleFlight(self.start_forecasts.write)
        self._notified_at_s: dict[AttemptId, float] = {}

    def tick(self) -> None:
        """Plan, and start the jobs that can start."""
        self._ticks.run()

    def answer_questions(self) -> None:
        """Answer the questions about what would become of a job, and start the simulations."""
        self._answers.run()

    def write_start_forecasts(self) -> None:
        """Write the expected starts of the waiting jobs."""
        self._start_forecasts.run()

    def reconcile(self, attempt_id: str) -> None:
        """Reconcile one attempt; many side by side where they arrive faster than they are reconciled."""
        self._reconciles.run(attempt_id)

    def _reconcile_batch(self, attempt_ids: Sequence[str]) -> None:
        """Reconcile them, and log each failure with its own key: the key may have come with another message.

        Raises:
            Unavailable: the database is away.
            AlreadyReported: some of them failed.
        """
        try:
            outcomes = self.reconciler.reconcile_all([AttemptId(key) for key in attempt_ids], self._note)
        except Unavailable:
            raise
        except Exception as error:
            log.exception("task.failed", task=RECONCILE, attempts=list(attempt_ids))
            raise AlreadyReported from error
        errors = [outcome for outcome in outcomes.values() if isinstance(outcome, Exception)]
        if any(not isinstance(error, Unavailable) for error in errors):
            raise AlreadyReported
        if errors:
            raise errors[0]

    def _note(self, attempt_id: AttemptId, outcome: ResultOrError) -> None:
        if isinstance(outcome, ReconcileResult):
            self.watch.note_reconciled(attempt_id, outcome)
        elif not isinstance(outcome, Unavailable):
            about: dict[str, object] = {}
            if isinstance(outcome, IllegalTransition):
                about["history"] = [{name: str(value) for name, value in line.items()} for line in outcome.history]
            log.error("task.failed", task=RECONCILE, attempt=attempt_id, exc_info=outcome, **about)

    def reconcile_due(self) -> None:
        """Resync: wake up every live attempt that is due, or that has drifted, in case its wake-up was lost."""
        with unit_of_work(self.control.sessions, read_only=True) as session:
            due = due_attempts(session, utc_now(), steady=SAFETY_RESYNC)
        due = list(dict.fromkeys([*due, *find_drifted(self.control, every=STEADY_RESYNC)]))
        for attempt_id in self._not_notified_recently(due):
            self.control.wakeup.notify(TOPIC_RECONCILE, attempt_id)

    def _not_notified_recently(self, due: list[AttemptId]) -> list[AttemptId]:
        """A thousand starting gangs are due every second, and take longer: a pending wake-up is not sent twice."""
        now_s = time.monotonic()
        recent = {known: at_s for known, at_s in self._notified_at_s.items() if now_s - at_s < _NOTIFY_AGAIN_S}
        fresh = [attempt_id for attempt_id in due if attempt_id not in recent]
        self._notified_at_s = recent | dict.fromkeys(fresh, now_s)
        return fresh

    def sync_nodes(self) -> None:
        """Update the table of nodes, and end the jobs that waited longer than their ``max_wait``."""
        try:
            sync_nodes(self.control)
        except ExecutorTryAgain as away:
            log.warning("executor.away", why=away.sentence)
        expire_waiting(self.control)

    def measure_projects(self) -> None:
        """Measure the storage of projects, in a thread, and sum what they have spent."""
        self.storage_meter.start()
        check_budgets(self.control)

    def gc_executor(self) -> None:
        """Remove from the executor what no live attempt owns."""
        try:
            gc_executor(self.control)
        except ExecutorTryAgain as away:
            log.warning("executor.away", why=away.sentence)

    def chain_audit(self) -> None:
        """Chain the new entries of the audit log by their hashes."""
        chain_audit(self.control)

    def collect_garbage(self) -> None:
        """Garbage collection in the database and on the disk."""
        collect_garbage(self.control, self.settings)

    def export_traces(self) -> None:
        """Export the traces of ended jobs, if there is a collector."""
        export_traces(self.control)

    def wait_for_database(self, stop: threading.Event) -> None:
        """Return when the database answers and the nodes are known; log once while it does not answer.

        Then also log the volumes that jobs cannot use here.
        """
        is_logged = False
        while not stop.is_set():
            try:
                self.sync_nodes()
                for sentence in refused_volumes(self.control.sessions, self.settings):
                    log.error("volume.refused", why=sentence)
                self.registrar.start()
                self.start_outgoing()
                self.simulations.start()  # also those that a scheduler left unfinished when it died
                return
            except Unavailable as away:
                if not is_logged:
                    log.warning("database.away", why=away.sentence)
                    is_logged = True
                stop.wait(1.0)

    def start_outgoing(self) -> None:
        """Deliver to webhooks and send notifications, now and from then on."""
        self.webhooks.start()
        self.notifier.start()

    def close(self) -> None:
        self.watch.stop()
        self.timers.close()
        self.simulations.close()
        self.studies.close()
        self.registrar.close()
        self.storage_meter.close()
        self.webhooks.close()
        self.notifier.close()
        self.engine.dispose()

    def _answer(self) -> None:
        self.simulations.start()
        self.question_answerer.answer()


def new_holder() -> str:
    """A name in leases that no other process has or had."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
