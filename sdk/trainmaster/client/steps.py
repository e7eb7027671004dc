"""The client's logic without I/O ("sans I/O").

Each operation is a generator that yields steps (send this request, wait, read the next event) and receives their
results. A transport executes the steps, either with blocking calls or with ``await``. So retries, resumption, uploads
and pagination are implemented once and tested without a network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from trainmaster.errors import (
    ModelError,
    ServerFailure,
    ServerUnreachable,
    TrainmasterError,
    WaitTimedOut,
    error_from_problem,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request relative to the server's API URL."""

    method: str
    path: str
    params: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = field(default=None, repr=False)
    read_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete HTTP response. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes = field(repr=False, default=b"")

    def json(self) -> Any:
        """The decoded body, or ``None`` if it is not JSON."""
        import json

        try:
            return json.loads(self.content)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event of a server-sent stream. ``id`` is the last ID received so far."""

    kind: str
    data: str
    id: str | None


class StreamSilent(Exception):
    """No data on an open stream within the request's ``read_timeout_s``."""


# --- the steps that a flow may yield --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Result: :class:`HttpResponse` of any status. Raises ``ServerUnreachable`` without a response."""

    request: HttpRequest


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Result: ``None`` with an open stream, or an :class:`HttpResponse` if the status is not 200."""

    request: HttpRequest


@dataclass(frozen=True, slots=True)
class NextEvent:
    """Result: :class:`ServerEvent`, or ``None`` at the end of the stream.

    Raises ``ServerUnreachable`` on a broken stream, :class:`StreamSilent` on a silent one.
    """


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Result: ``None``."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Result: ``None``, after ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RunBlocking:
    """Result: the return value of ``action``. For file I/O, which the asynchronous client runs in a thread."""

    action: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Emit:
    """Passes ``value`` to the caller of an iterating method. Result: ``None``."""

    value: Any


@dataclass(frozen=True, slots=True)
class GetRetryPolicy:
    """Result: the client's :class:`RetryPolicy`."""


Step: TypeAlias = Send | OpenStream | NextEvent | CloseStream | Pause | RunBlocking | Emit | GetRetryPolicy
Flow: TypeAlias = Generator[Step, Any, T]


class Executable(Protocol[T_co]):
    """An operation whose result is a ``T``: a :class:`Call` or a :data:`Flow`."""

    def __iter__(self) -> Generator[Step, Any, T_co]: ...


_FIRST_POLL_S: Final = 0.2
_MAX_POLL_S: Final = 2.0


def poll(
    read: Callable[[], Executable[T]],
    is_over: Callable[[T], bool],
    unfinished: Callable[[T], str],
    *,
    timeout_s: float | None,
) -> Flow[T]:
    """Read again and again until ``is_over``; returns what was read last.

    Args:
        unfinished: what the state is, for the message of the error.

    Raises:
        WaitTimedOut: it is not over after ``timeout_s``.
    """
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s = _FIRST_POLL_S
    while True:
        answer = yield from read()
        if is_over(answer):
            return answer
        if until_s is not None and time.monotonic() >= until_s:
            raise WaitTimedOut(f"{unfinished(answer)} after {timeout_s:g} s.")
        yield Pause(pause_s)
        pause_s = min(_MAX_POLL_S, pause_s * 1.5)


_ERROR_CHARS: Final = 500  # of a model's error message

# --- retries --------------------------------------------------------------------------------------------------------


def _system_chance() -> Callable[[], float]:
    from random import SystemRandom  # noqa: TID251 (the client is a boundary; tests pass their own generator)

    return SystemRandom().random


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries with exponential backoff and jitter.

    Delays double from ``first_delay_s`` to ``max_delay_s``; each is drawn between half and all of it, so that clients
    do not all return to a recovered server at once. Retry-After is honoured up to ``max_retry_after_s``; a longer one
    ends the retries.

    Args:
        tries: maximum number of requests, including the first.
        stream_patience_s: how long to reopen a broken stream without receiving an event.
        chance: random numbers from [0, 1).
    """

    tries: int = 5
    first_delay_s: float = 0.2
    max_delay_s: float = 5.0
    max_retry_after_s: float = 60.0
    stream_patience_s: float = 60.0
    chance: Callable[[], float] = field(default_factory=_system_chance, repr=False)

    def delay_s(self, failures: int, retry_after_s: float | None = None) -> float:
        """The delay after ``failures`` consecutive failures, at least the server's Retry-After."""
        backoff = min(self.max_delay_s, self.first_delay_s * 2.0 ** (failures - 1))
        return max(retry_after_s or 0.0, backoff * (0.5 + 0.5 * self.chance()))


def is_transient(error: TrainmasterError) -> bool:
    """Whether a retry may succeed."""
    return isinstance(error, ServerUnreachable) or error.status in {429, 502, 503, 504}


def error_of(request: HttpRequest, answer: HttpResponse) -> TrainmasterError:
    """The exception for a response of status ≥ 400."""
    if answer.headers.get("trainmaster-answered-by") == "model":
        return _error_of_model(answer)
    return error_from_problem(
        answer.status,
        answer.json(),
        where=f"{request.method} {request.path}",
        retry_after_s=_retry_after_s(answer.headers),
    )


def _error_of_model(answer: HttpResponse) -> ModelError:
    """The error reported by a deployed model, in any format."""
    value = answer.json()
    error = value.get("error") if isinstance(value, dict) else None
    message = str(error or answer.content[:_ERROR_CHARS].decode("utf-8", "replace")).strip()
    where = answer.headers.get("trainmaster-deployment", "")
    return ModelError(
        f"The model {where!r} answered {answer.status}" + (f": {message}" if message else "."),
        status=answer.status,
        answer=answer.content if value is None else value,
    )


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds of Retry-After; the date form, which the server never sends, is ignored."""
    try:
        return max(0.0, float(headers["retry-after"]))
    except (KeyError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One operation of the API: a request, and the decoder of its response.

    Inside a flow: ``job = yield from get_job("mnist")``.

    Args:
        operation: the ``operation_id`` in the server's OpenAPI document.
        is_repeatable: whether it is idempotent. Other requests are retried only if the server certainly did nothing.
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
            if failures >= policy.tries or not self._may_retry(error, policy):
                raise error
            yield Pause(policy.delay_s(failures, error.retry_after_s))

    def _may_retry(self, error: TrainmasterError, policy: RetryPolicy) -> bool:
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
                f"The response to {self.request.method} {self.request.path} has a format unknown to this client; use "
                "the same version for client and server.",
                status=answer.status,
            ) from error
