"""``python -m scheduler``: the scheduler of the embedded mode, or a worker; ``python -m scheduler beat``: the beat."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final

import structlog
from celery import Celery
from celery.platforms import EX_OK, SecurityWarning
from celery.signals import setup_logging
from celery.worker import state as worker_state
from sqlalchemy import Engine
from trainmaster.version import full_version

from core import telemetry
from core.db.engine import is_away, make_engine, make_sessions
from core.settings import BadSettings, Settings, get_settings
from core.structured_log import configure_logging
from core.wakeups import WakeupSocket, wakeup_socket_path
from scheduler.control.maintenance.retention import used_ratio
from scheduler.messaging.beat import Beat, LeaderElection
from scheduler.messaging.celery_app import QUEUES, make_app, schedule, send
from scheduler.messaging.fallback import Fallback
from scheduler.messaging.tasks import Tasks, register_tasks
from scheduler.messaging.wakeups import AppWakeup, WakeupListener
from scheduler.process import SchedulerProcess, new_holder, utc_now
from scheduler.process_metrics import ProcessMetrics, ProcessProbe, serve_probe

log = structlog.get_logger(__name__)

_CONCURRENCY: Final = 4
# A snapshot of a large cluster is a million small values without reference cycles: with Python's default thresholds a
# plan spent half of its time in garbage collection (10,000 nodes, 50,000 waiting: 1.9 s instead of 1.0 s).
_GARBAGE_THRESHOLDS: Final = (50_000, 20, 100)
# A loop iteration of a beat takes a second; a hanging database holds one of the leader election up for some seconds.
_STUCK_AFTER_S: Final = 60.0


def main(argv: list[str] | None = None) -> int:
    """The exit code: 0 after a requested stop; 1, with a sentence, when it cannot start, or when it ends by itself."""
    parser = argparse.ArgumentParser(prog="python -m scheduler", description=__doc__)
    parser.add_argument("part", nargs="?", choices=("worker", "beat"), default="worker")
    parser.add_argument("--concurrency", type=int, default=_CONCURRENCY, help="threads of a worker")
    options = parser.parse_args(argv)
    try:
        settings = get_settings()
        configure_logging(settings.log_level)
        telemetry.configure(options.part)
        # kombu warns that memory:// has no host name.
        logging.getLogger("kombu.connection").setLevel(logging.ERROR)
        if options.part == "beat":
            return _beat(settings)
        gc.set_threshold(*_GARBAGE_THRESHOLDS)
        return _worker(settings, options.concurrency)
    except BadSettings as error:
        print(error, file=sys.stderr)  # noqa: T201 (the command line's own output)
        return 1


def _beat(settings: Settings) -> int:
    if settings.is_embedded_broker:
        print("TRAINMASTER_BROKER_URL is not set: the embedded scheduler has a beat.", file=sys.stderr)  # noqa: T201
        return 1
    app, every, metrics = make_app(settings), schedule(settings), ProcessMetrics()
    engine = make_engine(settings.resolved_database_url, pool_size=1)
    is_leader = LeaderElection(make_sessions(engine), new_holder(), timedelta(seconds=settings.lease_ttl_s), utc_now)
    wakeup = _BeatSender(app, every, metrics)
    beat = Beat(wakeup.notify, every, is_leader)
    metrics.add_gauge("beat_is_leader", "Whether this beat is the leader, which sends.", lambda: beat.is_leading)
    _watch_servers(metrics, engine, wakeup)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: beat.stop())
    probe = ProcessProbe(lambda: _stuck(beat.last_turn_s), str, metrics.registry)
    with _probed(settings, probe):
        log.info("beat.started")
        beat.run()
        is_leader.resign()
        engine.dispose()
    log.info("beat.stopped")
    return 0


class _BeatSender:
    """Sends the beat's messages; logs once that the broker is away."""

    def __init__(self, app: Celery, every: Mapping[str, float], metrics: ProcessMetrics) -> None:
        self._app = app
        self._every = every
        self._metrics = metrics
        self.is_broker_away = False

    def notify(self, name: str) -> None:
        try:
            send(self._app, name, self._every[name])
        except Exception as error:  # noqa: BLE001 - the next interval tries again
            if not self.is_broker_away:
                log.warning("broker.away", why=str(error))
            self.is_broker_away = True
            return
        if self.is_broker_away:
            log.info("broker.back")
        self.is_broker_away = False
        self._metrics.beat_messages.labels(name).inc()


def _worker(settings: Settings, concurrency: int) -> int:
    app, every, metrics = make_app(settings), schedule(settings), ProcessMetrics()

    def run_task(task: str, key: str) -> None:
        tasks.run(task, key)  # they need the wake-up, which needs the fallback

    fallback = Fallback(every, run_task, workers=concurrency)
    wakeup = AppWakeup(app, None if settings.is_embedded_broker else fallback.submit)
    process = SchedulerProcess(settings, wakeup)
    tasks = Tasks(process, metrics)
    register_tasks(app, tasks, wakeup, fallback)
    metrics.add_gauge("watched_attempts", "Attempts that this process watches.", lambda: process.watch.count)
    metrics.add_gauge(
        "beat_missed", "Whether no beat is alive and this process runs its own.", lambda: fallback.is_active
    )
    metrics.add_gauge("disk_used_ratio", "Used part of the data folder's disk.", lambda: used_ratio(settings.home))
    _watch_servers(metrics, process.engine, wakeup)
    probe = ProcessProbe(
        lambda: _stuck(fallback.last_turn_s),
        lambda: "the database does not answer" if is_away(process.engine) else "",
        metrics.registry,
    )
    is_stopping = threading.Event()

    def stop_early(*_: object) -> None:
        is_stopping.set()
        worker_state.should_stop = EX_OK  # as its own handler does: a worker that starts later ends at once

    # Until the worker installs its own handlers: a stop while the database is away must neither hang nor be forgotten.
    signal.signal(signal.SIGTERM, stop_early)
    with _probed(settings, probe):
        fallback.start()
        process.wait_for_database(is_stopping)
        if is_stopping.is_set():
            return 0
        stops = [fallback.stop, process.close]
        process.watch.start()
        if settings.is_embedded_broker:
            listener = WakeupListener(WakeupSocket(wakeup_socket_path(settings.run_dir)), wakeup)
            listener.start()
            beat = Beat(lambda name: send(app, name, every[name]), every)
            threading.Thread(target=beat.run, name="beat", daemon=True).start()
            stops = [listener.stop, beat.stop, *stops]
        log.info(
            "scheduler.started",
            version=full_version(),
            executor=process.control.executor.name,
            holder=process.control.holder,
        )
        _run_worker(app, concurrency)
        for stop in stops:
            stop()
    # An exit code, possibly 0, where the worker was asked to end.
    was_requested = worker_state.should_stop is not None or worker_state.should_terminate is not None
    log.info("scheduler.stopped", was_requested=was_requested)
    return 0 if was_requested else 1  # any other cause has been logged


def _watch_servers(metrics: ProcessMetrics, engine: Engine, wakeup: AppWakeup | _BeatSender) -> None:
    metrics.add_gauge(
        "database_up", "Whether the database answered when it was last asked.", lambda: not is_away(engine)
    )
    metrics.add_gauge("broker_up", "Whether the broker took the last message.", lambda: not wakeup.is_broker_away)


def _stuck(last_turn_s: float) -> str:
    late_s = time.monotonic() - last_turn_s
    return f"its loop has stood still for {late_s:.0f} s" if late_s > _STUCK_AFTER_S else ""


@contextlib.contextmanager
def _probed(settings: Settings, probe: ProcessProbe) -> Iterator[None]:
    if not settings.probe_port:
        yield
        return
    server = serve_probe(probe, settings.probe_host, settings.probe_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _run_worker(app: Celery, concurrency: int) -> None:
    """Run until SIGTERM or SIGINT; running tasks finish first."""
    # Replicas start under limits of their own; whether the platform itself runs as root is the administrator's choice.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    # A receiver of this signal keeps Celery from configuring logging its own way.
    setup_logging.connect(_keep_logging)
    worker = app.Worker(
        pool="threads",
        concurrency=concurrency,
        queues=QUEUES,
        hostname=f"scheduler-{os.getpid()}@%h",
        loglevel="WARNING",
        quiet=True,
        without_heartbeat=True,
        without_gossip=True,
        without_mingle=True,
    )
    with contextlib.suppress(SystemExit):  # how it ends after a signal
        worker.start()


def _keep_logging(**_: object) -> None:
    pass


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Everything is closed by now. The exit handlers of libraries take seconds on a busy machine, and may wait for a
    # server that is away.
    os._exit(code)
