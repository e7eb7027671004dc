"""One tree of errors. Each carries a stable code, an HTTP status, and a sentence that says what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar


class TrainmasterError(Exception):
    """Base of everything that a user may read.

    Args:
        sentence: one clear sentence, with what to do.
        field: path of the field at fault, such as ``roles.worker.replicas``.
        errors: all mistakes of a payload, each ``{"path", "message", "hint"}``.
        retry_after_s: for 503.
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


def together(wrong: Sequence[InvalidRequest], what: str) -> InvalidRequest:
    """All mistakes of one request as one error; a single one as it is. ``what``: such as ``of the settings``."""
    if len(wrong) == 1:
        return wrong[0]
    return InvalidRequest(
        f"{len(wrong)} {what} cannot be as given, so nothing is changed.",
        field=wrong[0].field,
        errors=[{"path": mistake.field, "message": mistake.sentence, "hint": None} for mistake in wrong],
    )


class CheckpointUnreadable(InvalidRequest):
    """A checkpoint cannot be looked into: damaged, not whole, hostile, or of no format that is known."""

    code, status = "checkpoint_unreadable", 422


class InvalidSpec(TrainmasterError):
    code, status = "invalid_spec", 422


class Unauthenticated(TrainmasterError):
    code, status = "unauthenticated", 401


class TokenExpired(Unauthenticated):
    code, status = "token_expired", 401


class AttemptEnded(TrainmasterError):
    """The token's attempt is over, and its replicas should be, too: a runtime that reads this ends its command."""

    code, status = "attempt_ended", 410


class Forbidden(TrainmasterError):
    code, status = "forbidden", 403


class NotFound(TrainmasterError):
    """Also for what the caller may not know of."""

    code, status = "not_found", 404


class Conflict(TrainmasterError):
    code, status = "conflict", 409


class IllegalTransition(Conflict):
    """The thing's state does not allow this move.

    ``history``: its last events, oldest first, each ``{"at", "kind", "actor", "reason"}``. Whoever can read them adds
    them: the table of moves knows states alone.
    """

    code, status = "illegal_transition", 409
    history: tuple[Mapping[str, object], ...] = ()


class IdempotencyMismatch(Conflict):
    """The same Idempotency-Key came with another payload."""

    code, status = "idempotency_mismatch", 409


class PayloadTooLarge(TrainmasterError):
    code, status = "payload_too_large", 413


class RequestTooSlow(TrainmasterError):
    """A body did not come in time; whoever sends it is too slow, or has stopped."""

    code, status = "request_too_slow", 408


class RangeNotSatisfiable(TrainmasterError):
    code, status = "range_not_satisfiable", 416


class ClientTooOld(TrainmasterError):
    code, status = "client_too_old", 426


class InsufficientStorage(TrainmasterError):
    code, status = "insufficient_storage", 507


class Unavailable(TrainmasterError):
    """A part that we need (database, broker, engine) is away; try again."""

    code, status = "unavailable", 503


class RowsLocked(Unavailable):
    """Somebody else is at some of the rows for too long, or waits for ours in turn; the database itself is there."""


class ModelUnreachable(TrainmasterError):
    """A serving replica broke off while it was asked; whether it did what it was asked is not known."""

    code, status = "model_unreachable", 502


class ModelTooSlow(TrainmasterError):
    """A serving replica did not answer in the time that its deployment gives it."""

    code, status = "model_too_slow", 504


class ExecutorError(TrainmasterError):
    """Base of what drivers raise."""


class ExecutorTryAgain(ExecutorError):
    """The engine is away or busy; the same call may go through later."""

    code, status = "executor_try_again", 503


class ExecutorRefused(ExecutorError):
    """The engine says no; the user's to mend, shown as it is."""

    code, status = "executor_refused", 422


class AttemptRemoved(ExecutorRefused):
    """The attempt was removed from the engine, though nobody here knows of it: not the user's fault; a new one may run."""

    code, status = "attempt_removed", 409


class StaleWrite(Exception):
    """A fenced or compared write changed no row: somebody newer was there. Drop the work and look again."""
