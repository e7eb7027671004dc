"""Replicas that the engine could not kill: reported once each, in the job's history where that is still written."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from core.domain.ids import AttemptId
from executors.base import Executor, ReportsUnkilledReplicas

log = structlog.get_logger(__name__)


def unkilled_replicas(executor: Executor, attempt_id: AttemptId) -> Sequence[str]:
    """A sentence for each. They stay until :func:`forget_unkilled_replicas`, as writing them down may fail."""
    return executor.unkilled_replicas(attempt_id) if isinstance(executor, ReportsUnkilledReplicas) else ()


def forget_unkilled_replicas(executor: Executor, attempt_id: AttemptId) -> None:
    """They are written down."""
    if isinstance(executor, ReportsUnkilledReplicas):
        executor.forget_unkilled_replicas(attempt_id)


def log_unkilled(executor: Executor, attempt_id: AttemptId) -> None:
    """Log those of an attempt whose end another process has written without knowing them, or that has no row."""
    for sentence in unkilled_replicas(executor, attempt_id):
        log.warning("replica.given_up", attempt=attempt_id, why=sentence)
    forget_unkilled_replicas(executor, attempt_id)
