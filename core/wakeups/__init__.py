"""The scheduler's bell: a hint that there is something to do. Losing a ring costs latency, never truth."""

from __future__ import annotations

from core.wakeups.base import (
    TOPIC_ENDPOINT,
    TOPIC_FORECAST,
    TOPIC_MODELS,
    TOPIC_RECONCILE,
    TOPIC_STUDY,
    TOPIC_TICK,
    NoWakeup,
    ReportsProblem,
    Wakeup,
)
from core.wakeups.factory import make_wakeup
from core.wakeups.socket import SocketWakeup, WakeupSocket, wakeup_socket_path

__all__ = [
    "TOPIC_ENDPOINT",
    "TOPIC_FORECAST",
    "TOPIC_MODELS",
    "TOPIC_RECONCILE",
    "TOPIC_STUDY",
    "TOPIC_TICK",
    "Wakeup",
    "WakeupSocket",
    "NoWakeup",
    "SocketWakeup",
    "ReportsProblem",
    "wakeup_socket_path",
    "make_wakeup",
]
