from __future__ import annotations

from typing import Final, Protocol

TOPIC_TICK: Final = "tick"
TOPIC_RECONCILE: Final = "reconcile"  # key: the attempt's id


class Bell(Protocol):
    """Rings the scheduler after a commit. Never raises and never blocks for more than 50 ms."""

    def ring(self, topic: str, key: str = "") -> None: ...


class NullBell:
    """Rings nobody; the scheduler's own clock finds the work."""

    def ring(self, topic: str, key: str = "") -> None:
        pass
