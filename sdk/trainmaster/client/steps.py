"""The client's logic without any input or output.

Everything the client does is written once, as a generator that *asks* for steps (send this request, wait so long, read
the next event) and is handed their outcomes. A transport carries the steps out: one with blocking calls, one with
``await``. So retries, resumes, uploads and pagination exist once and are tested without a network.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from trainmaster.errors import ModelError, ServerFailure, ServerUnreachable, TrainmasterError, error_from_problem

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One HTTP request below the server's address, ready to send."""

    method: str
    path: str
    params: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = field(default=None, repr=False)
    read_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole answer. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes = field(repr=False, default=b"")

    def json(self) -> Any:
        """The decoded body, or ``None`` when it is no JSON."""
        import json

        try:
            return json.loads(self.content)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event of a server-sent stream. ``id`` is the newest one told so far."""

    kind: str
    data: str
    id: str | None


class StreamSilent(Exception):
    """Nothing came on an open stream within the request's ``read_timeout_s``."""


# --- what a generator may ask of its transport ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Outcome: :class:`HttpResponse`, whatever its status. Raises ``ServerUnreachable`` where none came."""

    request: HttpRequest


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Outcome: ``None`` with the stream open, or an :class:`HttpResponse` when the status is not 200."""

    request: HttpRequest


@dataclass(frozen=True, slots=True)
class NextEvent:
    """Outcome: :class:`ServerEvent`, or ``None`` at the stream's end.

    Raises ``ServerUnreachable`` on a broken stream, :class:`StreamSilent` on a without_content one.
    """


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Outcome: ``None``."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Outcome: ``None`` after ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RunBlocking:
    """Outcome: what ``action`` returns. For file work, which an event loop does in a thread."""

    action: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Emit:
    """Hands ``value`` to the caller of an iterating method. Outcome: ``None``."""

    value: Any


@dataclass(frozen=True, slots=True)
class GetRetryPolicy:
    """Outcome: the client's :class:`RetryPolicy`."""


Step: TypeAlias = Send | OpenStream | NextEvent | CloseStream | Pause | RunBlocking | Emit | GetRetryPolicy
Flow: TypeAlias = Generator[Step, Any, T]


class Executable(Protocol[T_co]):
    """Something that can be carried out for a ``T``: a :class:`Call`, or a running :data:`Flow`."""

    def __iter__(self) -> Generator[Step, Any, T_co]: ...


_ERROR_CHARS: Final = 500  # characters of a model's own error

# --- retries --------------------------------------------------------------------------------------------------------


def _system_chance() -> Callable[[], float]:
    from random import SystemRandom  # noqa: TID251 (the client is an edge; tests hand in their own chance)

    return SystemRandom().random


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a request is sent again.

    Delays double from ``first_delay_s`` to ``max_delay_s``, each drawn between half and whole, so that clients of a
    server that came back do not all arrive at once. What the server asks for by Retry-After is honoured up to
    ``max_retry_after_s``; a longer wish ends the trying.

    Args:
        tries: requests in all, the first included.
        stream_patience_s: how long a broken stream is opened again without one event in between.
        chance: draws from [0, 1).
    """

    tries: int = 5
    first_delay_s: float = 0.2
    max_delay_s: float = 5.0
    max_retry_after_s: float = 60.0
    stream_patience_s: float = 60.0
    chance: Callable[[], float] = field(default_factory=_system_chance, repr=False)

    def delay_s(self, failures: int, retry_after_s: float | None = None) -> float:
        """The pause after the ``failures``-th failure in a row, at least what the server asks for."""
        backoff = min(self.max_delay_s, self.first_delay_s * 2.0 ** (failures - 1))
        return max(retry_after_s or 0.0, backoff * (0.5 + 0.5 * self.chance()))


def is_transient(error: TrainmasterError) -> bool:
    """Whether the same request may go through later."""
    return isinstance(error, ServerUnreachable) or error.status in {429, 502, 503, 504}


def error_of(request: HttpRequest, answer: HttpResponse) -> TrainmasterError:
    """The exception that an answer of status ≥ 400 means."""
    if answer.headers.get("trainmaster-answered-by") == "model":
        return _error_of_model(answer)
    return error_from_problem(
        answer.status,
        answer.json(),
        where=f"{request.method} {request.path}",
        retry_after_s=_retry_after_s(answer.headers),
    )


def _error_of_model(answer: HttpResponse) -> ModelError:
    """What a deployed model said itself, which may be anything."""
    value = answer.json()
    told = value.get("error") if isinstance(value, dict) else None
    said = str(told or answer.content[:_ERROR_CHARS].decode("utf-8", "replace")).strip()
    where = answer.headers.get("trainmaster-deployment", "")
    return ModelError(
        f"The model {where!r} answered {answer.status}" + (f": {said}" if said else "."),
        status=answer.status,
        answer=answer.content if value is None else value,
    )


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds of Retry-After; its other form, a date, is not used by the server and ignored."""
    try:
        return max(0.0, float(headers["retry-after"]))
    except (KeyError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One operation of the API: a request, and how its answer becomes a ``T``.

    Inside a flow: ``job = yield from get_job("mnist")``.

    Args:
        operation: the ``operation_id`` in the server's OpenAPI document.
        is_repeatable: sending it twice does no harm. Others are sent again only where the server surely did nothing.
    """

    operation: str
    request: HttpRequest
    decode: Callable[[HttpResponse], T]
    is_repeatable: bool = True

    def __iter__(self) -> Generator[Step, Any, T]:
        policy: RetryPolicy = yield GetRetryPolicy()
        failures = 0
        while True:
            try:
                answer: HttpResponse = yield Send(self.request)
                if answer.status < 400:
                    return self._decoded(answer)
                error = error_of(self.request, answer)
            except ServerUnreachable as unreachable:
                error = unreachable
            failures += 1
            if failures >= policy.tries or not self._may_go_again(error, policy):
                raise error
            yield Pause(policy.delay_s(failures, error.retry_after_s))

    def _may_go_again(self, error: TrainmasterError, policy: RetryPolicy) -> bool:
        if not is_transient(error) or (error.retry_after_s or 0.0) > policy.max_retry_after_s:
            return False
        if self.is_repeatable or error.status == 429:
            return True
        return isinstance(error, ServerUnreachable) and not error.is_sent

    def _decoded(self, answer: HttpResponse) -> T:
        try:
            return self.decode(answer)
        except ValueError as error:  # pydantic's ValidationError is one
            raise ServerFailure(
                f"{self.request.method} {self.request.path} was answered in a form that this client does not know; "
                "bring client and server to the same version.",
                status=answer.status,
            ) from error
