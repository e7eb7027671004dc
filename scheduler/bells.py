"""Bells inside a scheduler process, and the listener for the bell of the embedded mode."""

from __future__ import annotations

import threading

import structlog
from celery import Celery

from core.bell import Bell, BellSocket
from core.bell.celery import TASK_OF_TOPIC
from scheduler.gate import Gate

log = structlog.get_logger(__name__)


class AppBell:
    """Rings through the process's own Celery application. Equal rings that still wait are one."""

    def __init__(self, app: Celery, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    def ring(self, topic: str, key: str = "") -> None:
        task = TASK_OF_TOPIC.get(topic)
        if task is None or not self._gate.enter(topic, key):
            return
        try:
            self._app.send_task(task, args=(key,) if key else (), retry=False, ignore_result=True)
        except Exception as error:  # noqa: BLE001 - a lost ring costs time only; beat rings again
            self._gate.leave(topic, key)
            log.warning("bell.lost", topic=topic, why=str(error))


class BellListener:
    """A thread that turns datagrams into rings."""

    def __init__(self, source: BellSocket, bell: Bell) -> None:
        self._source = source
        self._bell = bell
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bell", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join(2.0)
        self._source.close()

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            rung = self._source.receive(0.5)
            if rung is not None:
                self._bell.ring(*rung)
