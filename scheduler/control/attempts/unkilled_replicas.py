"""Replicas that the engine could not end: told once each, in the history of the job where that is still written."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from core.domain.ids import AttemptId
from executors.base import Executor, ReportsUnkilledReplicas

log = structlog.get_logger(__name__)


def unkilled_replicas(executor: Executor, attempt_id: AttemptId) -> Sequence[str]:
    """In words. They stay until :func:`forget_unkilled_replicas`, for what writes them down may fail."""
    return executor.unkilled_replicas(attempt_id) if isinstance(executor, ReportsUnkilledReplicas) else ()


def forget_unkilled_replicas(executor: Executor, attempt_id: AttemptId) -> None:
    """They are in the history."""
    if isinstance(executor, ReportsUnkilledReplicas):
        executor.forget_unkilled_replicas(attempt_id)


def log_unkilled(executor: Executor, attempt_id: AttemptId) -> None:
    """Of an attempt whose end is written already, by somebody who did not see them, or that has no row: to the log."""
    for sentence in unkilled_replicas(executor, attempt_id):
        log.warning("replica.given_up", attempt=attempt_id, why=sentence)
    forget_unkilled_replicas(executor, attempt_id)
