from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

TOPIC_TICK: Final = "tick"
TOPIC_FORECAST: Final = "forecast"
TOPIC_RECONCILE: Final = "reconcile"  # key: the attempt's id
TOPIC_STUDY: Final = "study"  # key: the study's id
TOPIC_MODELS: Final = "models"
TOPIC_ENDPOINT: Final = "endpoint"  # key: the endpoint's id


class Wakeup(Protocol):
    """Wakes the scheduler up after a commit. Never raises and never blocks for more than 50 ms."""

    def notify(self, topic: str, key: str = "") -> None: ...


@runtime_checkable
class ReportsProblem(Protocol):
    """A wake-up channel with a broker between the sender and the scheduler."""

    def problem(self, *, is_asking: bool = True) -> str | None:
        """What is wrong with the broker, in words, or ``None``. Without ``is_asking``: the last answer, at once."""
        ...


class NoWakeup:
    """Sends nothing; the scheduler's periodic tasks find the work."""

    def notify(self, topic: str, key: str = "") -> None:
        pass
