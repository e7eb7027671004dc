"""The two transports execute the steps of a flow with httpx: with blocking calls, or with ``await``.

They contain no logic beyond executing single steps and parsing server-sent events.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, cast

import httpx

from trainmaster.client.steps import (
    CloseStream,
    Emit,
    Executable,
    GetRetryPolicy,
    HttpRequest,
    HttpResponse,
    NextEvent,
    OpenStream,
    Pause,
    RetryPolicy,
    RunBlocking,
    Send,
    ServerEvent,
    Step,
    StreamSilent,
)
from trainmaster.errors import ServerUnreachable
from trainmaster.version import __version__

# A log line has at most 64 KiB; a stream with a longer line than this is not from a Trainmaster server.
MAX_LINE_BYTES: Final = 4 * 2**20
COMMENT: Final = ":"
T = TypeVar("T")
API_PREFIX: Final = "/api/v1"
# Enough for uploading a chunk and for slow disks, but a hung server does not block a program for minutes.
DEFAULT_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 5.0


class EventParser:
    """Incremental parser: turns chunks of bytes, split anywhere, into events.

    Follows https://html.spec.whatwg.org/multipage/server-sent-events.html: an event ends at an empty line, an ``id``
    stays valid until the next one. A comment, which servers send as keep-alive, becomes an event of the kind
    :data:`COMMENT`, so that readers of an idle stream get control.
    """

    def __init__(self) -> None:
        self._partial_line = b""
        self._kind = ""
        self._data: list[str] = []
        self._id: str | None = None
        self._has_new_id = False

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """The events that ``chunk`` completes.

        Raises:
            ValueError: a line without an end.
        """
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        if len(self._partial_line) > MAX_LINE_BYTES:
            raise ValueError("a line of the stream has no end")
        for raw in lines:
            event = self._take(raw.removesuffix(b"\r").decode("utf-8", errors="replace"))
            if event is not None:
                yield event

    def _take(self, line: str) -> ServerEvent | None:
        if not line:
            return self._finish()
        if line.startswith(":"):
            return ServerEvent(COMMENT, "", self._id)
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data.append(value)
            case "event":
                self._kind = value
            case "id" if "\0" not in value:
                self._id, self._has_new_id = value, True
            case _:
                pass  # `retry`, or a field of a later server
        return None

    def _finish(self) -> ServerEvent | None:
        kind, data, is_new = self._kind, self._data, self._has_new_id
        self._kind, self._data, self._has_new_id = "", [], False
        if data or kind:
            return ServerEvent(kind or "message", "\n".join(data), self._id)
        # An ID alone only advances the position to resume from.
        return ServerEvent(COMMENT, "", self._id) if is_new else None


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Settings of the HTTP client, for both transports."""

    url: str
    token: str | None = field(default=None, repr=False)
    timeout_s: float = DEFAULT_TIMEOUT_S
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    verify: bool | str | ssl.SSLContext = True

    @property
    def base_url(self) -> str:
        return self.url.rstrip("/").removesuffix(API_PREFIX) + API_PREFIX

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Trainmaster-Client": __version__, "User-Agent": f"trainmaster/{__version__}"}
        return headers | ({"Authorization": f"Bearer {self.token}"} if self.token else {})

    @property
    def uses_proxies(self) -> bool:
        """Whether to use the environment's proxies; never for a server on this machine."""
        host = httpx.URL(self.url).host if "://" in self.url else ""
        return not (host in ("localhost", "::1") or host.startswith("127."))

    @property
    def client_arguments(self) -> dict[str, Any]:
        """Keyword arguments for httpx's clients."""
        return {
            "base_url": self.base_url,
            "headers": self.headers,
            "timeout": httpx.Timeout(self.timeout_s, connect=min(CONNECT_TIMEOUT_S, self.timeout_s)),
            "verify": self.verify,
            "trust_env": self.uses_proxies,
        }

    @contextmanager
    def errors_of(self, step: Step) -> Iterator[None]:
        """Translates httpx's errors in a step into the client's exceptions."""
        try:
            yield
        except httpx.ReadTimeout as timeout:
            if isinstance(step, NextEvent):
                raise StreamSilent from timeout
            raise self.unreachable(timeout) from timeout
        except (httpx.TransportError, httpx.InvalidURL) as problem:
            raise self.unreachable(problem) from problem

    def unreachable(self, error: httpx.TransportError | httpx.InvalidURL) -> ServerUnreachable:
        """The error for a request without a response."""
        if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
            return ServerUnreachable(f"{self.url!r} is not a server's URL; write it like http://host:8765.")
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
            cause = f" ({error})" if "certificate" in str(error).lower() else ""
            return ServerUnreachable(
                f"No Trainmaster server answers at {self.url}{cause}: start one with `trainmaster up`, or log in to "
                "another with `trainmaster login URL`."
            )
        problem = "did not answer in time" if isinstance(error, httpx.TimeoutException) else "closed the connection"
        return ServerUnreachable(f"The Trainmaster server at {self.url} {problem}; try again.", is_sent=True)


def _arguments(request: HttpRequest) -> dict[str, Any]:
    """Keyword arguments for httpx's ``build_request``."""
    arguments: dict[str, Any] = {
        "method": request.method,
        "url": request.path,
        "params": request.params,
        "headers": request.headers,
        "content": request.content,
    }
    if request.read_timeout_s is not None:
        arguments["timeout"] = httpx.Timeout(
            request.read_timeout_s, connect=CONNECT_TIMEOUT_S, write=DEFAULT_TIMEOUT_S, pool=DEFAULT_TIMEOUT_S
        )
    return arguments


def _answer(response: httpx.Response) -> HttpResponse:
    return HttpResponse(
        response.status_code, {key.lower(): value for key, value in response.headers.items()}, response.content
    )


EventsT = TypeVar("EventsT")


@dataclass(slots=True)
class _Stream(Generic[EventsT]):
    """An open stream; ``events`` is a blocking or an asynchronous iterator."""

    response: httpx.Response
    events: EventsT


class _Running(Generic[T, EventsT]):
    """A flow in execution, with the result or error of its last step."""

    def __init__(self, steps: Executable[T]) -> None:
        self._flow: Generator[Step, Any, T] = iter(steps)
        self.stream: list[_Stream[EventsT]] = []  # at most one
        self.outcome: Any = None
        self.error: Exception | None = None
        self.result: T | None = None

    def next(self) -> Step | None:
        """The flow's next step; ``None`` when it has ended and ``result`` is set."""
        outcome, error = self.outcome, self.error
        self.outcome, self.error = None, None
        try:
            return self._flow.throw(error) if error else self._flow.send(outcome)
        except StopIteration as done:
            self.result = done.value
            return None

    def close(self) -> None:
        self._flow.close()


def _read_events(response: httpx.Response) -> Iterator[ServerEvent]:
    parser = EventParser()
    for chunk in response.iter_bytes():
        yield from parser.feed(chunk)


async def _aread_events(response: httpx.Response) -> AsyncIterator[ServerEvent]:
    parser = EventParser()
    async for chunk in response.aiter_bytes():
        for event in parser.feed(chunk):
            yield event


class SyncTransport:
    """Executes flows with blocking calls. Thread-safe."""

    def __init__(self, connection: ConnectionSettings, http: httpx.BaseTransport | None = None) -> None:
        self._connection = connection
        self._http = httpx.Client(**connection.client_arguments, transport=http)

    def close(self) -> None:
        self._http.close()

    def run(self, steps: Executable[T]) -> T:
        """Execute all steps; the flow's return value."""
        running = _Running[T, Iterator[ServerEvent]](steps)
        for _ in self._emitted(running):
            pass
        return cast("T", running.result)

    def iterate(self, steps: Executable[None]) -> Iterator[Any]:
        """The values that the flow emits. Closing the iterator closes the flow's stream."""
        yield from self._emitted(_Running[None, Iterator[ServerEvent]](steps))

    def _emitted(self, running: _Running[T, Iterator[ServerEvent]]) -> Iterator[Any]:
        try:
            while (step := running.next()) is not None:
                if isinstance(step, Emit):
                    yield step.value
                    continue
                try:
                    with self._connection.errors_of(step):
                        running.outcome = self._do(step, running.stream)
                except Exception as raised:  # noqa: BLE001 (the flow handles any failure of its step)
                    running.error = raised
        finally:
            running.close()
            self._do(CloseStream(), running.stream)

    def _do(self, step: Step, stream: list[_Stream[Iterator[ServerEvent]]]) -> Any:
        match step:
            case Send(request):
                return _answer(self._http.send(self._http.build_request(**_arguments(request))))
            case OpenStream(request):
                response = self._http.send(self._http.build_request(**_arguments(request)), stream=True)
                if response.status_code != 200:
                    try:
                        response.read()
                    finally:
                        response.close()
                    return _answer(response)
                stream[:] = [_Stream(response, _read_events(response))]
            case NextEvent():
                return next(stream[0].events, None)
            case CloseStream():
                while stream:
                    stream.pop().response.close()
            case Pause(seconds):
                time.sleep(seconds)  # noqa: TID251 (the boundary: a flow requested it)
            case RunBlocking(action):
                return action()
            case GetRetryPolicy():
                return self._connection.policy
            case Emit():
                raise AssertionError("handled by the caller")
        return None


class AsyncTransport:
    """Executes flows with ``await``; file I/O runs in a thread."""

    def __init__(self, connection: ConnectionSettings, http: httpx.AsyncBaseTransport | None = None) -> None:
        self._connection = connection
        self._http = httpx.AsyncClient(**connection.client_arguments, transport=http)

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, steps: Executable[T]) -> T:
        """Execute all steps; the flow's return value."""
        running = _Running[T, AsyncIterator[ServerEvent]](steps)
        async for _ in self._emitted(running):
            pass
        return cast("T", running.result)

    async def iterate(self, steps: Executable[None]) -> AsyncIterator[Any]:
        """The values that the flow emits. Closing the iterator closes the flow's stream."""
        values = self._emitted(_Running[None, AsyncIterator[ServerEvent]](steps))
        try:
            async for value in values:
                yield value
        finally:
            await values.aclose()

    async def _emitted(self, running: _Running[T, AsyncIterator[ServerEvent]]) -> AsyncGenerator[Any, None]:
        import anyio

        try:
            while (step := running.next()) is not None:
                if isinstance(step, Emit):
                    yield step.value
                    continue
                try:
                    with self._connection.errors_of(step):
                        running.outcome = await self._do(step, running.stream)
                except Exception as raised:  # noqa: BLE001 (the flow handles any failure of its step)
                    running.error = raised
        finally:
            running.close()
            with anyio.CancelScope(shield=True):  # a cancelled reader also returns its connection to the pool
                await self._do(CloseStream(), running.stream)

    async def _do(self, step: Step, stream: list[_Stream[AsyncIterator[ServerEvent]]]) -> Any:
        import anyio
        import anyio.to_thread

        match step:
            case Send(request):
                return _answer(await self._http.send(self._http.build_request(**_arguments(request))))
            case OpenStream(request):
                response = await self._http.send(self._http.build_request(**_arguments(request)), stream=True)
                if response.status_code != 200:
                    try:
                        await response.aread()
                    finally:
                        await response.aclose()
                    return _answer(response)
                stream[:] = [_Stream(response, _aread_events(response))]
            case NextEvent():
                return await anext(stream[0].events, None)
            case CloseStream():
                while stream:
                    await stream.pop().response.aclose()
            case Pause(seconds):
                await anyio.sleep(seconds)
            case RunBlocking(action):
                return await anyio.to_thread.run_sync(action)
            case GetRetryPolicy():
                return self._connection.policy
            case Emit():
                raise AssertionError("handled by the caller")
        return None
