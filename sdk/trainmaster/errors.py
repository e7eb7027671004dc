"""What can go wrong, as one tree of exceptions.

The server answers with a stable code; :data:`EXCEPTION_BY_CODE` says which class it becomes here. ``str(error)`` is
the server's own sentence, followed by one line per field at fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple


class FieldMistake(NamedTuple):
    """One mistake of a payload: where, what, and what would be right."""

    path: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        text = f"{self.path}: {self.message}" if self.path else self.message
        return f"{text} ({self.hint})" if self.hint else text


class PastEvent(NamedTuple):
    """One line of a thing's history; ``at`` as the server writes times."""

    at: str
    kind: str
    actor: str
    reason: str = ""


class TrainmasterError(Exception):
    """Base of everything that this package raises on purpose.

    Args:
        sentence: what happened and what to do, for a person.
        code: the server's code; a class's own ``code`` where the error arose on this side.
        status: HTTP status, or ``None`` when no answer came.
        mistakes: every field at fault.
        retry_after_s: how long the server asks to wait.
        history: of an :class:`IllegalTransition`, the last events of the thing, oldest first.
        request_id: the server's name for the request, to be given to its administrator.
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
    def unsaid_mistakes(self) -> tuple[FieldMistake, ...]:
        """``mistakes``; none where the sentence tells the only one."""
        is_said = len(self.mistakes) == 1 and self.mistakes[0].message in self.sentence
        return () if is_said else self.mistakes

    def __str__(self) -> str:
        return "\n".join([self.sentence, *(f"  {mistake}" for mistake in self.unsaid_mistakes)])

    def to_problem(self) -> dict[str, Any]:
        """The error in the server's own notation (RFC 9457), for programs."""
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


# --- told by the server ---------------------------------------------------------------------------------------------


class ServerFailure(TrainmasterError):
    """The server met a bug of its own, or answered something that is not Trainmaster's."""


class InvalidRequest(TrainmasterError):
    code = "invalid_request"


class CheckpointUnreadable(InvalidRequest):
    """A checkpoint cannot be looked into: damaged, not whole, hostile, or of no format that is known."""

    code = "checkpoint_unreadable"


class InvalidSpec(InvalidRequest):
    """``mistakes`` holds all mistakes of the spec at once. ``of``: what is refused, a job's spec or a study's."""

    code = "invalid_spec"
    of = "job"


class Unauthenticated(TrainmasterError):
    code = "unauthenticated"


class TokenExpired(Unauthenticated):
    code = "token_expired"


class Forbidden(TrainmasterError):
    code = "forbidden"


class NotFound(TrainmasterError):
    """Also for what the caller may not know of."""

    code = "not_found"


class Conflict(TrainmasterError):
    code = "conflict"


class IllegalTransition(Conflict):
    """The thing's state does not allow this move; ``history`` tells how it came to be so."""

    code = "illegal_transition"


class IdempotencyMismatch(Conflict):
    """The same Idempotency-Key came with another payload."""

    code = "idempotency_mismatch"


class PayloadTooLarge(TrainmasterError):
    code = "payload_too_large"


class RequestTooSlow(TrainmasterError):
    """A body did not come in time; the way to the server is too slow for it."""

    code = "request_too_slow"


class RangeNotSatisfiable(TrainmasterError):
    code = "range_not_satisfiable"


class ClientTooOld(TrainmasterError):
    code = "client_too_old"


class TooManyRequests(TrainmasterError):
    """A proxy before the server asks for fewer requests (429)."""

    code = "too_many_requests"


class InsufficientStorage(TrainmasterError):
    code = "insufficient_storage"


class Unavailable(TrainmasterError):
    """A part that the server needs is away; the same request may go through later."""

    code = "unavailable"


class ModelUnreachable(TrainmasterError):
    """A serving replica broke off while it was asked; whether it did what it was asked is not known."""

    code = "model_unreachable"


class ModelTooSlow(TrainmasterError):
    """A serving replica did not answer in the time that its deployment gives it."""

    code = "model_too_slow"


class ModelError(TrainmasterError):
    """The model itself refused a request or failed at it; ``answer`` is what it said, ``status`` its own."""

    code = "model_error"

    def __init__(self, sentence: str, *, status: int | None = None, answer: Any = None) -> None:
        super().__init__(sentence, status=status)
        self.answer = answer


class ExecutorTryAgain(Unavailable):
    """The engine that runs the containers is away or busy."""

    code = "executor_try_again"


class ExecutorRefused(TrainmasterError):
    """The engine that runs the containers says no."""

    code = "executor_refused"


class AttemptRemoved(ExecutorRefused):
    """The engine has forgotten the attempt; a new one may run."""

    code = "attempt_removed"


class AttemptEnded(TrainmasterError):
    """The token's attempt is over."""

    code = "attempt_ended"


# --- arisen on this side --------------------------------------------------------------------------------------------


class ServerUnreachable(TrainmasterError):
    """No answer came: nobody listens, the network is away, or it took too long.

    ``is_sent`` tells whether the request may have reached the server.
    """

    code = "server_unreachable"

    def __init__(self, sentence: str, *, is_sent: bool = False) -> None:
        super().__init__(sentence)
        self.is_sent = is_sent


class NotConfigured(TrainmasterError):
    """No server is named by the environment, the saved contexts or a running local platform."""

    code = "not_configured"


class UnfitFolder(TrainmasterError):
    """The code folder cannot be packed: absent, empty, too large, or with links that leave it."""

    code = "unfit_folder"


class LocalFileProblem(TrainmasterError):
    """A file on this machine is in the way, absent or unreadable."""

    code = "local_file_problem"


class WaitTimedOut(TrainmasterError):
    """The job had not ended when the time was over; it goes on."""

    code = "wait_timed_out"


# A test proves that every code of the server's tree is here.
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
            InsufficientStorage,
            Unavailable,
            ModelUnreachable,
            ModelTooSlow,
            ExecutorTryAgain,
            ExecutorRefused,
        )
    },
}

# What a status means when its body is not ours: a proxy's page, an older or newer server's unknown code.
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
        body: the decoded JSON body, or anything else when it was not JSON.
        where: what was asked, such as ``GET http://…/api/v1/jobs``; used when the body tells nothing.
    """
    problem: Mapping[str, Any] = body if isinstance(body, dict) else {}
    code = problem.get("code")
    kind = EXCEPTION_BY_CODE.get(str(code)) or _EXCEPTION_BY_STATUS.get(status, ServerFailure)
    detail = problem.get("detail")
    if not isinstance(detail, str) or not detail:
        detail = f"{where} answered {status}, and not as a Trainmaster server does; check the address and any proxy."
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
