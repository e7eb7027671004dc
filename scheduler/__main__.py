"""``python -m scheduler``: the scheduler of the embedded mode, or a worker; ``python -m scheduler beat``: the clock."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
import warnings

import structlog
from celery import Celery
from celery.beat import Scheduler
from celery.beat import Service as BeatService
from celery.platforms import SecurityWarning
from celery.signals import setup_logging

from core.bell import BellSocket, bell_path
from core.settings import BadSettings, Settings, get_settings
from core.structured_log import configure_logging
from scheduler.bells import AppBell, BellListener
from scheduler.celery_app import QUEUES, make_app
from scheduler.executor_factory import UnknownExecutor
from scheduler.gate import Gate
from scheduler.service import Service
from scheduler.tasks import register_tasks

log = structlog.get_logger(__name__)

_CONCURRENCY = 4


def main(argv: list[str] | None = None) -> int:
    """The exit code: 0 after a clean stop, 1 with a sentence when it cannot start."""
    parser = argparse.ArgumentParser(prog="python -m scheduler", description=__doc__)
    parser.add_argument("part", nargs="?", choices=("worker", "beat"), default="worker")
    parser.add_argument("--concurrency", type=int, default=_CONCURRENCY, help="threads of a worker")
    options = parser.parse_args(argv)
    try:
        settings = get_settings()
        configure_logging(settings.log_level)
        # It warns that memory:// has no host name.
        logging.getLogger("kombu.connection").setLevel(logging.ERROR)
        if options.part == "beat":
            return _beat(settings)
        return _worker(settings, options.concurrency)
    except (UnknownExecutor, BadSettings) as error:
        print(error, file=sys.stderr)  # noqa: T201 (the command line's own output)
        return 1


def _beat(settings: Settings) -> int:
    if settings.is_embedded_broker:
        print("TRAINMASTER_BROKER_URL is not set: the embedded scheduler has its own clock.", file=sys.stderr)  # noqa: T201
        return 1
    service = BeatService(make_app(settings), scheduler_cls=Scheduler)
    signal.signal(signal.SIGTERM, lambda *_: service.stop())
    log.info("beat.started")
    service.start()
    return 0


def _worker(settings: Settings, concurrency: int) -> int:
    gate = Gate(is_local=settings.is_embedded_broker)
    app = make_app(settings)
    bell = AppBell(app, gate)
    service = Service(settings, bell)
    register_tasks(app, service, gate)
    is_stopping = threading.Event()
    # Until the worker has handlers of its own: a stop while the database is away must not hang.
    signal.signal(signal.SIGTERM, lambda *_: is_stopping.set())
    service.wait_for_database(is_stopping)
    if is_stopping.is_set():
        return 0
    stops = [service.close]
    service.watch.start()
    if settings.is_embedded_broker:
        listener = BellListener(BellSocket(bell_path(settings.run_dir)), bell)
        listener.start()
        beat = BeatService(app, scheduler_cls=Scheduler)
        threading.Thread(target=beat.start, kwargs={"embedded_process": False}, name="beat", daemon=True).start()
        stops = [listener.stop, beat.stop, *stops]
    log.info("scheduler.started", executor=service.control.executor.name, holder=service.control.holder)
    _run_worker(app, concurrency)
    for stop in stops:
        stop()
    log.info("scheduler.stopped")
    return 0


def _run_worker(app: Celery, concurrency: int) -> None:
    """Work until SIGTERM or SIGINT; what is being worked on is finished first."""
    # Replicas are started under their own limits; that the platform itself runs as root is the admin's choice.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    # Whoever answers this signal keeps Celery from setting the log up its own way.
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
    with contextlib.suppress(SystemExit):  # that is how it ends after a signal
        worker.start()


def _keep_logging(**_: object) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
