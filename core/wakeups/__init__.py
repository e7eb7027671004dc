"""Wake-ups: hints to the scheduler that there is work. A lost one costs latency, never correctness."""

from __future__ import annotations

from core.settings import Settings
from core.wakeups.base import (
    TOPIC_ENDPOINT,
    TOPIC_FORECAST,
    TOPIC_MODELS,
    TOPIC_RECONCILE,
    TOPIC_STUDY,
    TOPIC_TICK,
    NoWakeup,
    ReportsProblem,
    SocketWakeup,
    Wakeup,
    WakeupSocket,
    wakeup_socket_path,
)

__all__ = [
    "TOPIC_ENDPOINT",
    "TOPIC_FORECAST",
    "TOPIC_MODELS",
    "TOPIC_RECONCILE",
    "TOPIC_STUDY",
    "TOPIC_TICK",
    "NoWakeup",
    "ReportsProblem",
    "SocketWakeup",
    "Wakeup",
    "WakeupSocket",
    "make_wakeup",
    "wakeup_socket_path",
]


def make_wakeup(settings: Settings) -> Wakeup:
    """The wake-up channel to this platform's scheduler."""
    if settings.is_embedded_broker:
        return SocketWakeup(wakeup_socket_path(settings.run_dir))
    # Importing Celery takes a quarter of a second: only processes that send through it pay for that.
    from core.wakeups.celery import CeleryWakeup

    return CeleryWakeup(settings.broker_url)
