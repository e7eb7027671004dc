"""Wake-ups: hints to the scheduler that there is work. A lost one costs latency, never correctness."""

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
    "NoWakeup",
    "ReportsProblem",
    "SocketWakeup",
    "Wakeup",
    "WakeupSocket",
    "make_wakeup",
    "wakeup_socket_path",
]
