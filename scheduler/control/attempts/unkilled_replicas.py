"""Replicas that the engine could not end: told once each, in the history of the job where that is still written."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from core.domain.ids import AttemptId
from executors.base import Executor, TellsLeftovers

log = structlog.get_logger(__name__)


def leftovers(executor: Executor, attempt_id: AttemptId) -> Sequence[str]:
    """In words. They stay until :func:`forget_leftovers`, for what writes them down may fail."""
    return executor.leftovers(attempt_id) if isinstance(executor, TellsLeftovers) else ()


def forget_leftovers(executor: Executor, attempt_id: AttemptId) -> None:
    """They are in the history."""
    if isinstance(executor, TellsLeftovers):
        executor.forget_leftovers(attempt_id)


def log_leftovers(executor: Executor, attempt_id: AttemptId) -> None:
    """Of an attempt whose end is written already, by somebody who did not see them, or that has no row: to the log."""
    for sentence in leftovers(executor, attempt_id):
        log.warning("replica.given_up", attempt=attempt_id, why=sentence)
    forget_leftovers(executor, attempt_id)
