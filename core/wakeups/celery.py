"""Wake-ups of production: Celery messages sent by name, so that the sender needs none of the scheduler's code."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, Final

from celery import Celery

from core.wakeups import TOPIC_ENDPOINT, TOPIC_FORECAST, TOPIC_MODELS, TOPIC_RECONCILE, TOPIC_STUDY, TOPIC_TICK

TASK_OF_TOPIC: Final = {
    TOPIC_TICK: "trainmaster.tick",
    TOPIC_FORECAST: "trainmaster.forecast",
    TOPIC_RECONCILE: "trainmaster.reconcile",
    TOPIC_STUDY: "trainmaster.study",
    TOPIC_MODELS: "trainmaster.models",
    TOPIC_ENDPOINT: "trainmaster.endpoint",
}
# A user waits for a forecast: it does not queue behind a thousand reconciles.
QUEUE_OF_TOPIC: Final = {
    TOPIC_TICK: "tick",
    TOPIC_FORECAST: "tick",
    TOPIC_RECONCILE: "reconcile",
    TOPIC_STUDY: "reconcile",
    TOPIC_MODELS: "maintenance",
    TOPIC_ENDPOINT: "reconcile",
}
# More pending wake-ups are dropped: the broker is away, and the beat sends again when it is back.
_MAX_PENDING: Final = 1000
# The request for the platform's health waits for this answer.
_CHECK_WITHIN_S: Final = 0.3
_ANSWER_TTL_S: Final = 1.0
_AWAY: Final = (
    "Redis, the broker, does not answer; jobs are accepted, but the schedulers run at their own interval only"
)


class CeleryWakeup:
    """Hands each wake-up to one background thread: a broker that is slow or away never delays a request."""

    def __init__(self, broker_url: str) -> None:
        self._app = Celery("trainmaster-wakeup", broker=broker_url, set_as_current=False)
        self._app.conf.update(
            broker_connection_timeout=2,
            broker_transport_options={"socket_timeout": 2, "socket_connect_timeout": 2},
            task_ignore_result=True,
        )
        self._waiting: queue.Queue[tuple[str, str]] = queue.Queue(_MAX_PENDING)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._problem: str | None = None
        self._checked_at = float("-inf")
        self._checking = threading.Lock()

    def problem(self, *, is_asking: bool = True) -> str | None:
        """What is wrong with the broker, in words: connects to it within about a second, or gives the last answer.

        Sent wake-ups tell nothing here: a quiet platform sends none for hours.
        """
        # One thread connects for all: the others would only wait for the same answer.
        if is_asking and self._checking.acquire(blocking=False):
            try:
                if time.monotonic() - self._checked_at >= _ANSWER_TTL_S:
                    self._problem = None if _answers(self._app) else _AWAY
                    self._checked_at = time.monotonic()
            finally:
                self._checking.release()
        return self._problem

    def notify(self, topic: str, key: str = "") -> None:
        try:
            self._waiting.put_nowait((topic, key))
        except queue.Full:
            return
        if self._thread is None or not self._thread.is_alive():  # not alive: the process has forked since
            with self._starting:
                if self._thread is None or not self._thread.is_alive():
                    self._thread = threading.Thread(target=self._send, name="wakeups", daemon=True)
                    self._thread.start()

    def _send(self) -> None:
        while True:
            topic, key = self._waiting.get()
            options: dict[str, Any] = {"retry": False, "ignore_result": True, "expires": 30}
            try:
                self._app.send_task(
                    TASK_OF_TOPIC[topic], args=(key,) if key else (), queue=QUEUE_OF_TOPIC[topic], **options
                )
            except Exception:  # noqa: BLE001, S110 - whatever the broker says, the wake-up may be lost
                pass


def _answers(app: Celery) -> bool:
    # ``max_retries``: one immediate retry, since a connection may be refused by chance.
    patience = {"socket_timeout": _CHECK_WITHIN_S, "socket_connect_timeout": _CHECK_WITHIN_S}
    try:
        with app.connection_for_write(connect_timeout=_CHECK_WITHIN_S, transport_options=patience) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=_CHECK_WITHIN_S)
    except Exception:  # noqa: BLE001 - any error of the broker's library means that it does not answer
        return False
    return True
