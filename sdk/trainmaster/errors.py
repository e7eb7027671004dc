"""The exception hierarchy of this package.

The server answers with a stable error code; :data:`EXCEPTION_BY_CODE` maps it to a class. ``str(error)`` is the
server's message, followed by one line per invalid field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple


class FieldMistake(NamedTuple):
    """One mistake of a payload: its path, the message, and how to correct it."""

    path: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        text = f"{self.path}: {self.message}" if self.path else self.message
        return f"{text} ({self.hint})" if self.hint else text


class PastEvent(NamedTuple):
    """One event of an object's history; ``at`` is an ISO 8601 time."""

    at: str
    kind: str
    actor: str
    reason: str = ""


class TrainmasterError(Exception):
    """Base class of all exceptions of this package.

    Args:
        sentence: what happened and what to do, for users.
        server_code: the server's error code; by default the class's ``code``, for errors of the client.
        status: HTTP status; ``None`` without an answer.
        mistakes: all invalid fields.
        retry_after_s: how long the server asks to wait, in seconds.
        history: for an :class:`IllegalTransition`, the last events of the object, oldest first.
        request_id: the server's ID of the request, for its administrator.
    """

    code: ClassVar[str] = "internal"

    def __init__(
        self,
        sentence: str,
        *,
        status: int | None = None,
        server_code: str | None = None,
        field: str | None = None,
        mistakes: Sequence[FieldMistake] = (),
        history: Sequence[PastEvent] = (),
        retry_after_s: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.status = status
        self.server_code = server_code or self.code
        self.field = field
        self.mistakes = tuple(mistakes)
        self.history = tuple(history)
        self.retry_after_s = retry_after_s
        self.request_id = request_id

    @property
    def further_mistakes(self) -> tuple[FieldMistake, ...]:
        """``mistakes``; empty if the sentence already contains the only one."""
        is_in_sentence = len(self.mistakes) == 1 and self.mistakes[0].message in self.sentence
        return () if is_in_sentence else self.mistakes

    def __str__(self) -> str:
        return "\n".join([self.sentence, *(f"  {mistake}" for mistake in self.further_mistakes)])

    def to_problem(self) -> dict[str, Any]:
        """The error in the server's format (RFC 9457), for programs."""
        return {
            "type": "about:blank",
            "title": type(self).__name__,
            "status": self.status,
            "code": self.server_code,
            "detail": self.sentence,
            "field": self.field,
            "errors": [mistake._asdict() for mistake in self.mistakes],
            **({"history": [event._asdict() for event in self.history]} if self.history else {}),
            "request_id": self.request_id,
        }


# --- errors reported by the server ----------------------------------------------------------------------------------


class ServerFailure(TrainmasterError):
    """An internal error of the server, or an answer that is not in Trainmaster's format."""


class InvalidRequest(TrainmasterError):
    code = "invalid_request"


class CheckpointUnreadable(InvalidRequest):
    """A checkpoint cannot be inspected: damaged, incomplete, malicious, or in an unknown format."""

    code = "checkpoint_unreadable"


class InvalidSpec(InvalidRequest):
    """``mistakes`` holds all mistakes of the spec. ``of``: "job" or "study"."""

    code = "invalid_spec"
    of = "job"


class Unauthenticated(TrainmasterError):
    code = "unauthenticated"


class TokenExpired(Unauthenticated):
    code = "token_expired"


class Forbidden(TrainmasterError):
    code = "forbidden"


class BudgetExceeded(Forbidden):
    """The project has spent its budget of this month, and new jobs are refused."""

    code = "budget_exceeded"


class NotFound(TrainmasterError):
    """Also raised for objects that the caller may not see."""

    code = "not_found"


class Conflict(TrainmasterError):
    code = "conflict"


class IllegalTransition(Conflict):
    """The object's state does not allow this transition; ``history`` holds its last events."""

    code = "illegal_transition"


class IdempotencyMismatch(Conflict):
    """The same Idempotency-Key was used with another payload."""

    code = "idempotency_mismatch"


class PayloadTooLarge(TrainmasterError):
    code = "payload_too_large"


class RequestTooSlow(TrainmasterError):
    """A request body did not arrive in time; the connection is too slow for it."""

    code = "request_too_slow"


class RangeNotSatisfiable(TrainmasterError):
    code = "range_not_satisfiable"


class ClientTooOld(TrainmasterError):
    code = "client_too_old"


class TooManyRequests(TrainmasterError):
    """The server, or a proxy in front of it, limits requests, streams or attempts to log in (429)."""

    code = "too_many_requests"


class InsufficientStorage(TrainmasterError):
    code = "insufficient_storage"


class StorageQuotaExceeded(InsufficientStorage):
    """The project's storage quota is used up; the message says what to delete, or whom to ask."""

    code = "storage_quota_exceeded"


class Unavailable(TrainmasterError):
    """A dependency of the server is unavailable; the same request may succeed later."""

    code = "unavailable"


class ProviderFailed(TrainmasterError):
    """An identity provider is unreachable from the server, or answered the server with an error."""

    code = "provider_failed"


class ModelUnreachable(TrainmasterError):
    """A serving replica closed the connection during a request; whether it processed the request is unknown."""

    code = "model_unreachable"


class ModelTooSlow(TrainmasterError):
    """A serving replica did not answer within its deployment's timeout."""

    code = "model_too_slow"


class ModelError(TrainmasterError):
    """The model rejected a request or failed; ``answer`` and ``status`` are the model's."""

    code = "model_error"

    def __init__(self, sentence: str, *, status: int | None = None, answer: Any = None) -> None:
        super().__init__(sentence, status=status)
        self.answer = answer


class ExecutorTryAgain(Unavailable):
    """The container engine is unavailable or busy."""

    code = "executor_try_again"


class ExecutorRefused(TrainmasterError):
    """The container engine rejected the request."""

    code = "executor_refused"


class AttemptRemoved(ExecutorRefused):
    """The container engine no longer has the attempt; a new one may run."""

    code = "attempt_removed"


class AttemptEnded(TrainmasterError):
    """The token's attempt is over."""

    code = "attempt_ended"


# --- errors of the client -------------------------------------------------------------------------------------------


class ServerUnreachable(TrainmasterError):
    """No answer: connection refused, network error, or timeout.

    ``is_sent``: whether the request may have reached the server.
    """

    code = "server_unreachable"

    def __init__(self, sentence: str, *, is_sent: bool = False) -> None:
        super().__init__(sentence)
        self.is_sent = is_sent


class NotConfigured(TrainmasterError):
    """No server in the environment, the saved contexts or on this machine."""

    code = "not_configured"


class UnfitFolder(TrainmasterError):
    """The code folder cannot be packed: missing, empty, too large, or with links to files outside of it."""

    code = "unfit_folder"


class LocalFileProblem(TrainmasterError):
    """A local file is missing or unreadable, or already exists."""

    code = "local_file_problem"


class WaitTimedOut(TrainmasterError):
    """The job did not end before the timeout; it continues."""

    code = "wait_timed_out"


# A test proves that every error code of the server is listed.
EXCEPTION_BY_CODE: Final[Mapping[str, type[TrainmasterError]]] = {
    "internal": ServerFailure,
    **{
        kind.code: kind
        for kind in (
            InvalidRequest,
            CheckpointUnreadable,
            InvalidSpec,
            Unauthenticated,
            TokenExpired,
            Forbidden,
            NotFound,
            Conflict,
            AttemptEnded,
            AttemptRemoved,
            IllegalTransition,
            IdempotencyMismatch,
            PayloadTooLarge,
            RequestTooSlow,
            RangeNotSatisfiable,
            ClientTooOld,
            TooManyRequests,
            InsufficientStorage,
            StorageQuotaExceeded,
            BudgetExceeded,
            Unavailable,
            ProviderFailed,
            ModelUnreachable,
            ModelTooSlow,
            ExecutorTryAgain,
            ExecutorRefused,
        )
    },
}

# By HTTP status, for bodies without a known code: a proxy's error page, or the code of an older or newer server.
_EXCEPTION_BY_STATUS: Final[Mapping[int, type[TrainmasterError]]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: PayloadTooLarge,
    416: RangeNotSatisfiable,
    422: InvalidRequest,
    426: ClientTooOld,
    429: TooManyRequests,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
    507: InsufficientStorage,
}


def error_from_problem(status: int, body: Any, *, where: str, retry_after_s: float | None = None) -> TrainmasterError:
    """The exception for an answer of ``status`` ≥ 400.

    Args:
        body: the decoded JSON body, or any other value if it was not JSON.
        where: the request, such as ``GET http://…/api/v1/jobs``; for the message if the body has none.
    """
    problem: Mapping[str, Any] = body if isinstance(body, dict) else {}
    code = problem.get("code")
    kind = EXCEPTION_BY_CODE.get(str(code)) or _EXCEPTION_BY_STATUS.get(status, ServerFailure)
    detail = problem.get("detail")
    if not isinstance(detail, str) or not detail:
        detail = f"{where} answered {status} in a format that is not Trainmaster's; check the URL and any proxy."
    raw_errors, raw_history = problem.get("errors"), problem.get("history")
    return kind(
        detail,
        status=status,
        server_code=str(code) if code else None,
        field=problem.get("field"),
        mistakes=[
            FieldMistake(str(item.get("path", "")), str(item.get("message", "")), item.get("hint"))
            for item in (raw_errors if isinstance(raw_errors, list) else [])
            if isinstance(item, dict)
        ],
        history=[
            PastEvent(*(str(item.get(name) or "") for name in PastEvent._fields))
            for item in (raw_history if isinstance(raw_history, list) else [])
            if isinstance(item, dict)
        ],
        retry_after_s=retry_after_s,
        request_id=problem.get("request_id"),
    )
