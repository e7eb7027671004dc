"""Wake-ups inside a scheduler process: sent through its Celery application, received from the socket of the embedded
mode, or set for a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import structlog
from celery import Celery

from core.wakeups import TASK_OF_TOPIC, Wakeup, WakeupSocket
from core.work_queue import InFlight

log = structlog.get_logger(__name__)

_AWAY_S: Final = 2.0
# Each timer is a sleeping thread; beyond this number the beat's next message does the same a little later.
_MAX_TIMERS: Final = 200
# What is further away is set again before then.
MAX_AHEAD: Final = timedelta(seconds=10)


class AppWakeup:
    """Sends wake-ups through the process's own Celery application.

    ``run_locally``: runs the task with this key in this process while the broker accepts no message; it must not block.
    ``None``: the broker is this process's own, so that a message equal to a pending one is not sent. With a shared
    broker another process may consume the message without this one learning of it: then every message is sent.
    """

    def __init__(
        self,
        app: Celery,
        run_locally: Callable[[str, str], None] | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._pending: InFlight[tuple[str, str]] = InFlight()
        self._run_locally = run_locally
        self._clock_s = clock_s
        self._away_until_s = 0.0
        self.is_broker_away = False

    def notify(self, topic: str, key: str = "") -> None:
        task = TASK_OF_TOPIC.get(topic)
        if task is None or (self._run_locally is None and not self._pending.start((topic, key))):
            return
        # Only one attempt in a while finds out whether the broker is back: each one blocks its thread for a while.
        if self._clock_s() < self._away_until_s:
            self._fall_back(topic, task, key)
            return
        try:
            self._app.send_task(task, args=(key,) if key else (), retry=False, ignore_result=True)
        except Exception as error:  # noqa: BLE001 - a lost wake-up costs only time; the beat sends again
            if not self.is_broker_away:
                log.warning("broker.away", why=str(error))
            self.is_broker_away = True
            self._away_until_s = self._clock_s() + _AWAY_S
            self._fall_back(topic, task, key)
        else:
            if self.is_broker_away:
                log.info("broker.back")
            self.is_broker_away = False

    def note_message(self, topic: str, key: str) -> None:
        """The message is consumed. Called before the work: a message sent during the work may carry newer
        information.
        """
        self._pending.finish((topic, key))

    def _fall_back(self, topic: str, task: str, key: str) -> None:
        self.note_message(topic, key)
        if self._run_locally is not None:
            self._run_locally(task, key)


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
            topic_and_key = self._source.receive(0.5)
            if topic_and_key is not None:
                self._wakeup.notify(*topic_and_key)


class Timers:
    """One-shot timers for wake-ups that would otherwise wait for the next message of the beat.

    At most one timer per topic and key, the earliest. Of this process alone; thread-safe.

    Args:
        notify: called in a thread of its own; it must not raise.
    """

    def __init__(self, notify: Callable[[str, str], None], clock: Callable[[], datetime]) -> None:
        self._notify = notify
        self._clock = clock
        self._lock = threading.Lock()
        self._set: dict[tuple[str, str], tuple[datetime, threading.Timer]] = {}
        self._is_closed = False

    def set(self, topic: str, key: str, at: datetime, *, max_ahead: timedelta | None = MAX_AHEAD) -> None:
        """Notify at ``at``, or at once where that is past. A time further ahead than ``max_ahead`` is ignored."""
        name = topic, key
        left = at - self._clock()
        if max_ahead is not None and left > max_ahead:
            return
        with self._lock:
            if self._is_closed:
                return
            pending = self._set.get(name)
            if pending is None and len(self._set) >= _MAX_TIMERS:
                return
            if pending is not None and pending[0] <= at:
                return
            timer = threading.Timer(max(0.0, left.total_seconds()), self._fire, (name, at))
            timer.daemon = True
            try:
                timer.start()
            except RuntimeError:
                return  # no thread could be started: the beat's next message does the same
            if pending is not None:
                pending[1].cancel()
            self._set[name] = at, timer

    def close(self) -> None:
        """Cancel all timers; none can be set any more."""
        with self._lock:
            self._is_closed = True
            for _, timer in self._set.values():
                timer.cancel()
            self._set.clear()

    def _fire(self, name: tuple[str, str], at: datetime) -> None:
        with self._lock:
            pending = self._set.get(name)
            if pending is None or pending[0] != at:
                return  # an earlier timer has replaced it at this moment
            del self._set[name]
        self._notify(*name)
