"""The error hierarchy. Each error has a stable code, an HTTP status, and a sentence that says what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar


class TrainmasterError(Exception):
    """Base of everything that a user may read.

    Args:
        sentence: one clear sentence, with what to do.
        field: path of the field at fault, such as ``roles.worker.replicas``.
        errors: all mistakes of a payload, each ``{"path", "message", "hint"}``.
        retry_after_s: for 429 and 503.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    def __init__(
        self,
        sentence: str,
        *,
        field: str | None = None,
        errors: list[dict[str, str | None]] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.field = field
        self.errors = errors or []
        self.retry_after_s = retry_after_s


class InvalidRequest(TrainmasterError):
    code, status = "invalid_request", 422


def combined_error(wrong: Sequence[InvalidRequest], what: str) -> InvalidRequest:
    """Combine all mistakes of a request into one error; a single one is returned as is. ``what``: such as ``of the
    settings``.
    """
    if len(wrong) == 1:
        return wrong[0]
    return InvalidRequest(
        f"{len(wrong)} {what} cannot be as given, so nothing is changed.",
        field=wrong[0].field,
        errors=[{"path": mistake.field, "message": mistake.sentence, "hint": None} for mistake in wrong],
    )


class CheckpointUnreadable(InvalidRequest):
    """A checkpoint that cannot be inspected: damaged, incomplete, hostile, or of an unknown format."""

    code, status = "checkpoint_unreadable", 422


class InvalidSpec(TrainmasterError):
    code, status = "invalid_spec", 422


class Unauthenticated(TrainmasterError):
    code, status = "unauthenticated", 401


class TokenExpired(Unauthenticated):
    code, status = "token_expired", 401


class AttemptEnded(TrainmasterError):
    """The token's attempt is over: a runtime that receives this ends its command."""

    code, status = "attempt_ended", 410


class Forbidden(TrainmasterError):
    code, status = "forbidden", 403


class BudgetExceeded(Forbidden):
    """The project has spent its budget of this month, and an administrator has set that new jobs are refused then."""

    code, status = "budget_exceeded", 403


class NotFound(TrainmasterError):
    """Also for things that the caller may not know of."""

    code, status = "not_found", 404


class Conflict(TrainmasterError):
    code, status = "conflict", 409


class IllegalTransition(Conflict):
    """The state does not allow this transition.

    ``history``: the last events, oldest first, each ``{"at", "kind", "actor", "reason"}``. Callers with database access
    add it;
    the transition table knows states alone.
    """

    code, status = "illegal_transition", 409
    history: tuple[Mapping[str, object], ...] = ()


class IdempotencyMismatch(Conflict):
    """The same Idempotency-Key came with another payload."""

    code, status = "idempotency_mismatch", 409


class PayloadTooLarge(TrainmasterError):
    code, status = "payload_too_large", 413


class RequestTooSlow(TrainmasterError):
    """A body did not arrive in time: its sender is too slow, or has stopped."""

    code, status = "request_too_slow", 408


class TooManyRequests(TrainmasterError):
    """A limit of fair use between callers is reached; ``retry_after_s`` says when there is room again."""

    code, status = "too_many_requests", 429


class RangeNotSatisfiable(TrainmasterError):
    code, status = "range_not_satisfiable", 416


class ClientTooOld(TrainmasterError):
    code, status = "client_too_old", 426


class InsufficientStorage(TrainmasterError):
    code, status = "insufficient_storage", 507


class StorageQuotaExceeded(InsufficientStorage):
    """The project's storage quota is used up: nothing may be added until files are deleted, or the quota is raised."""

    code, status = "storage_quota_exceeded", 507


class Unavailable(TrainmasterError):
    """A dependency (database, broker, engine) is away; try again."""

    code, status = "unavailable", 503


class RowsLocked(Unavailable):
    """Some rows are locked for too long, or in a deadlock; the database itself is up."""


class ProviderFailed(TrainmasterError):
    """An identity provider cannot be reached, refuses the platform itself, or does not keep to the protocol."""

    code, status = "provider_failed", 502


class ModelUnreachable(TrainmasterError):
    """A serving replica broke the connection off during a request; whether the request took effect is unknown."""

    code, status = "model_unreachable", 502


class ModelTooSlow(TrainmasterError):
    """A serving replica did not answer within its deployment's timeout."""

    code, status = "model_too_slow", 504


class ExecutorError(TrainmasterError):
    """Base of the drivers' errors."""


class ExecutorTryAgain(ExecutorError):
    """The engine is away or busy; the same call may succeed later."""

    code, status = "executor_try_again", 503


class ExecutorRefused(ExecutorError):
    """The engine refuses; its message is shown to the user, who has to correct the job."""

    code, status = "executor_refused", 422


class AttemptRemoved(ExecutorRefused):
    """The attempt was removed from the engine by another process: not the user's fault; a new attempt may run."""

    code, status = "attempt_removed", 409


class StaleWrite(Exception):
    """A fenced or compared write changed no row: a newer writer was first. Drop the work and reconcile again."""
