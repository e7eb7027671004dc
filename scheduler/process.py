"""Everything that a scheduler process has, wired from the settings."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from core.db.engine import make_engine, make_sessions, unit_of_work
from core.domain.errors import ExecutorTryAgain, IllegalTransition, Unavailable
from core.domain.ids import AttemptId
from core.model_server_commands import own_server
from core.settings import Settings
from core.tokens import platform_key
from core.wakeups import TOPIC_RECONCILE, TOPIC_TICK, Wakeup
from scheduler.attempt_watch import Watch
from scheduler.control.attempts.reconcile_result import Look
from scheduler.control.attempts.reconciler import Reconciler
from scheduler.control.attempts.storage.transaction_batcher import Outcome
from scheduler.control.context import Control
from scheduler.control.models.registrar import Registrar
from scheduler.control.planning.start_forecasts import OutlookWriter
from scheduler.control.planning.tick import Ticker
from scheduler.control.questions.forecasts import Forecaster
from scheduler.control.questions.simulations import Simulations
from scheduler.control.serving.endpoint_loop import EndpointKeeper
from scheduler.control.studies.study_loop import StudyKeeper
from scheduler.control.upkeep.drift import glance
from scheduler.control.upkeep.gc import expire_waiting, housekeep, sweep_executor
from scheduler.control.upkeep.nodes import sync_nodes
from scheduler.control.upkeep.resync import SAFETY_LOOK, STEADY_LOOK, due_attempts
from scheduler.executor_factory import make_executor
from scheduler.messaging.celery_app import RECONCILE
from scheduler.messaging.coalescing import Crowd, Solo
from scheduler.messaging.duty_cycle import Pace
from scheduler.messaging.timers import Alarms
from scheduler.tuning.proposers import Proposers
from scheduler.volume_check import refused_volumes

log = structlog.get_logger(__name__)

# The embedded scheduler is alone on its data folder, so the next one may take its leases over at once.
_EMBEDDED_HOLDER: Final = "embedded"

# Starting a replica is mostly waiting; more at once only fight over the cores.
_CREATE_AT_ONCE: Final = 4

# Of a worker's threads these look at attempts; another one takes the messages meanwhile, so that they are looked at side by
# side where there are many. An engine is slow to answer, and a thread that looks is free again with the slowest of its looks.
_LOOKERS: Final = 3
_LOOKS_AT_ONCE: Final = 32

# Seconds until beat's ring for an attempt is taken for lost.
_RING_AGAIN_S: Final = 5.0


def utc_now() -> datetime:
    """The wall clock: the only place of the scheduler that reads it."""
    return datetime.now(UTC)  # noqa: TID251 - the edge


class Logged(Exception):
    """Something failed, and is told where it is known what: nobody else need tell it."""


class Service:
    """The control loop of one process, and the work behind each task. Methods never raise for what is normal."""

    def __init__(self, settings: Settings, bell: Wakeup) -> None:
        self.settings = settings
        setup = make_executor(settings)
        self.engine = make_engine(settings.resolved_database_url, pool_size=settings.database_pool_size)
        self.control = Control(
            sessions=make_sessions(self.engine),
            executor=setup.executor,
            bell=bell,
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
        )
        self.reconciler = Reconciler(self.control)
        self.ticker = Ticker(self.control)
        self.forecaster = Forecaster(self.control)
        self.simulations = Simulations(self.control)
        self.studies = StudyKeeper(self.control, Proposers(loads_ahead=True))
        self.registrar = Registrar(self.control, limit_bytes=settings.model_limit_bytes)
        self.alarms = Alarms(bell.notify, utc_now)
        self.endpoints = EndpointKeeper(
            self.control, own_server() if settings.executor == "process" else None, alarm=self.alarms.set
        )
        self.outlook_writer = OutlookWriter(self.control)
        self.watch = Watch(
            setup.executor, setup.watch_every, lambda attempt_id: bell.notify(TOPIC_RECONCILE, attempt_id), utc_now
        )
        self._looks = Crowd(self._look_at, hands=_LOOKERS, at_once=_LOOKS_AT_ONCE)
        self._solo_tick = Solo()
        self._tick_pace = Pace()
        self._solo_forecast = Solo()
        self._solo_look = Solo()
        self._rung_s: dict[AttemptId, float] = {}
        self._timers: set[datetime] = set()
        self._is_resting = False
        self._timer_lock = threading.Lock()

    def tick(self) -> None:
        """Plan and start what can start."""
        self._solo_tick.run(self._tick)

    def forecast(self) -> None:
        """Answer those who ask what would become of a job, and begin with simulations."""
        self._solo_forecast.run(self._answer)

    def look_ahead(self) -> None:
        """Write when those that wait are expected to start."""
        self._solo_look.run(self.outlook_writer.write)

    def reconcile(self, attempt_id: str) -> None:
        """Look at one attempt; at many side by side where they come faster than they are looked at."""
        self._looks.run(attempt_id)

    def _look_at(self, attempt_ids: Sequence[str]) -> None:
        """Look at them, and log what fails, each with its own key: whoever is here may have brought another one.

        Raises:
            Unavailable: the database is away.
            Logged: some of them failed.
        """
        try:
            outcomes = self.reconciler.reconcile_all([AttemptId(key) for key in attempt_ids], self._note)
        except Unavailable:
            raise
        except Exception as error:
            log.exception("task.failed", task=RECONCILE, attempts=list(attempt_ids))
            raise Logged from error
        errors = [outcome for outcome in outcomes.values() if isinstance(outcome, Exception)]
        if any(not isinstance(error, Unavailable) for error in errors):
            raise Logged
        if errors:
            raise errors[0]

    def _note(self, attempt_id: AttemptId, outcome: Outcome) -> None:
        if isinstance(outcome, Look):
            self.watch.note(attempt_id, outcome)
        elif not isinstance(outcome, Unavailable):
            about: dict[str, object] = {}
            if isinstance(outcome, IllegalTransition):
                about["history"] = [{name: str(value) for name, value in line.items()} for line in outcome.history]
            log.error("task.failed", task=RECONCILE, attempt=attempt_id, exc_info=outcome, **about)

    def study(self, study_id: str) -> None:
        """Look at one study."""
        self.studies.keep(study_id)

    def studies_due(self) -> None:
        """Ring for every study that something may happen to."""
        self.studies.ring_due()

    def models(self) -> None:
        """Begin with what is registered and deleted in the registry of models."""
        self.registrar.start()

    def endpoint(self, endpoint_id: str) -> None:
        """Look at one endpoint."""
        self.endpoints.keep(endpoint_id)

    def endpoints_due(self) -> None:
        """Ring for every endpoint that something may happen to."""
        self.endpoints.ring_due()

    def reconcile_due(self) -> None:
        """Ring for every live attempt that is worth a look: what a lost bell would have done."""
        with unit_of_work(self.control.sessions, read_only=True) as session:
            due = due_attempts(session, utc_now(), steady=SAFETY_LOOK)
        due += [found for found in glance(self.control, every=STEADY_LOOK) if found not in due]
        for attempt_id in self._not_rung_lately(due):
            self.control.bell.notify(TOPIC_RECONCILE, attempt_id)

    def _not_rung_lately(self, due: list[AttemptId]) -> list[AttemptId]:
        """A thousand gangs that start are due every second and take longer: a ring that waits need not be doubled."""
        now_s = time.monotonic()
        lately = {known: at_s for known, at_s in self._rung_s.items() if now_s - at_s < _RING_AGAIN_S}
        fresh = [attempt_id for attempt_id in due if attempt_id not in lately]
        self._rung_s = lately | dict.fromkeys(fresh, now_s)
        return fresh

    def sync_nodes(self) -> None:
        """Keep the nodes table true, and end what waited too long."""
        try:
            sync_nodes(self.control)
        except ExecutorTryAgain as away:
            log.warning("executor.away", why=away.sentence)
        expire_waiting(self.control)

    def sweep(self) -> None:
        """Remove from the executor what no live attempt owns."""
        try:
            sweep_executor(self.control)
        except ExecutorTryAgain as away:
            log.warning("executor.away", why=away.sentence)

    def housekeep(self) -> None:
        """Clear away what piles up in the database and on the disk."""
        housekeep(self.control, self.settings)

    def wait_for_database(self, stop: threading.Event) -> None:
        """Return when the database answers and the nodes are known; tell it once while it does not.

        Then also tell of volumes that no job can have.
        """
        is_told = False
        while not stop.is_set():
            try:
                self.sync_nodes()
                for sentence in refused_volumes(self.control.sessions, self.settings):
                    log.error("volume.refused", why=sentence)
                self.registrar.start()
                self.simulations.start()  # with those that a scheduler left when it died
                return
            except Unavailable as away:
                if not is_told:
                    log.warning("database.away", why=away.sentence)
                    is_told = True
                stop.wait(1.0)

    def close(self) -> None:
        self.watch.stop()
        self.alarms.close()
        self.simulations.close()
        self.studies.close()
        self.registrar.close()
        self.engine.dispose()

    def _answer(self) -> None:
        self.simulations.start()
        self.forecaster.answer()

    def _tick(self) -> None:
        left_s = self._tick_pace.left_s
        if left_s > 0:
            self._tick_after(left_s)
            return
        with self._tick_pace.run():
            report = self.ticker.tick()
        if report.next_look is not None:
            self._tick_at(report.next_look)

    def _tick_at(self, at: datetime) -> None:
        """Ring the tick when a back-off is over, not up to a whole interval later."""
        with self._timer_lock:
            if at in self._timers or len(self._timers) > 100:
                return
            self._timers.add(at)
        self._ring_in(max(0.0, (at - utc_now()).total_seconds()), at)

    def _tick_after(self, left_s: float) -> None:
        """Ring the tick when it has rested, once for all who have rung meanwhile."""
        with self._timer_lock:
            if self._is_resting:
                return
            self._is_resting = True
        self._ring_in(left_s, None)

    def _ring_in(self, left_s: float, at: datetime | None) -> None:
        timer = threading.Timer(left_s, self._ring_tick, (at,))
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:
            self._forget_timer(at)  # no thread is to be had: beat's ring finds it, and the next one may be set

    def _ring_tick(self, at: datetime | None) -> None:
        self._forget_timer(at)
        self.control.bell.notify(TOPIC_TICK)

    def _forget_timer(self, at: datetime | None) -> None:
        with self._timer_lock:
            if at is None:
                self._is_resting = False
            else:
                self._timers.discard(at)


def new_holder() -> str:
    """A name in leases that no other process has or had."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
