"""The scheduler's bell: a hint that there is something to do. Losing a ring costs latency, never truth."""

from __future__ import annotations

from core.bell.base import (
    TOPIC_ENDPOINT,
    TOPIC_FORECAST,
    TOPIC_MODELS,
    TOPIC_RECONCILE,
    TOPIC_STUDY,
    TOPIC_TICK,
    Bell,
    NullBell,
    TellsProblem,
)
from core.bell.make import make_bell
from core.bell.socket import BellSocket, SocketBell, bell_path

__all__ = [
    "TOPIC_ENDPOINT",
    "TOPIC_FORECAST",
    "TOPIC_MODELS",
    "TOPIC_RECONCILE",
    "TOPIC_STUDY",
    "TOPIC_TICK",
    "Bell",
    "BellSocket",
    "NullBell",
    "SocketBell",
    "TellsProblem",
    "bell_path",
    "make_bell",
]
