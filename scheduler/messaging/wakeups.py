"""Wake-ups inside a scheduler process, and the listener for those of the embedded mode."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog
from celery import Celery

from core.wakeups import Wakeup, WakeupSocket
from core.wakeups.celery import TASK_OF_TOPIC
from scheduler.messaging.work_queue import PendingDeduplicator

log = structlog.get_logger(__name__)

_AWAY_S: Final = 2.0


class AppWakeup:
    """Sends wake-ups through the process's own Celery application. Equal pending ones are sent once.

    ``without_broker``: runs the task in this process while the broker accepts no message; it must not block.
    """

    def __init__(
        self, app: Celery, deduplicator: PendingDeduplicator, without_broker: Callable[[str, str], None] | None = None
    ) -> None:
        self._app = app
        self._deduplicator = deduplicator
        self._without_broker = without_broker
        self._away_until_s = 0.0
        self.is_broker_away = False

    def notify(self, topic: str, key: str = "") -> None:
        task = TASK_OF_TOPIC.get(topic)
        if task is None or not self._deduplicator.add(topic, key):
            return
        # Only one attempt in a while finds out whether the broker is back: each one blocks its thread for a while.
        if time.monotonic() < self._away_until_s:
            self._fall_back(topic, key)
            return
        try:
            self._app.send_task(task, args=(key,) if key else (), retry=False, ignore_result=True)
        except Exception as error:  # noqa: BLE001 - a lost wake-up costs only time; the beat sends again
            if not self.is_broker_away:
                log.warning("broker.away", why=str(error))
            self.is_broker_away = True
            self._away_until_s = time.monotonic() + _AWAY_S
            self._fall_back(topic, key)
        else:
            if self.is_broker_away:
                log.info("broker.back")
            self.is_broker_away = False

    def _fall_back(self, topic: str, key: str) -> None:
        self._deduplicator.discard(topic, key)
        if self._without_broker is not None:
            self._without_broker(topic, key)


class WakeupListener:
    """A thread that turns datagrams into wake-ups."""

    def __init__(self, source: WakeupSocket, wakeup: Wakeup) -> None:
        self._source = source
        self._wakeup = wakeup
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wakeups", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join(2.0)
        self._source.close()

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            received = self._source.receive(0.5)
            if received is not None:
                self._wakeup.notify(*received)
