"""Streams are served by a process of their own: however many are open, other requests are answered as before.

The API forks it before it serves. It accepts all connections; a connection whose next request is for a stream is handed
over (``SCM_RIGHTS``, unix(7)) with the request's bytes. The process of streams runs the same application, and closes
the connection after its answer. It ends with the API, and is started again if it dies.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, NoReturn

import orjson
import structlog
import uvicorn
from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI
from prometheus_client import Metric
from starlette.datastructures import Headers
from uvicorn.server import ServerState

from api.app.fair_use import TokenBuckets, caller_key
from api.app.graceful_shutdown import GracefulShutdown
from api.app.unit_of_work import AppContext
from api.http.problems import problem_of, problem_response
from api.prometheus.recorder import process_name
from core.domain.errors import TooManyRequests, TrainmasterError, Unavailable

log = structlog.get_logger(__name__)

_STREAM: Final = re.compile(
    rb"GET /api/v1/(?:jobs/[^/? ]+/(?:logs|metrics)/stream[? ]|(?:jobs/[^/? ]+/)?events\?(?:[^ ]*&)?follow=)"
)
# Heads of requests; uvicorn's parser allows as much.
HEAD_LIMIT: Final = 2**16
_ASK_FOR_METRICS: Final = b"metrics"
_MESSAGE_LIMIT: Final = 2**18
_METRICS_S: Final = 1.0
# A caller may open twice as many streams at once as it may have, and as many as it may have in so many seconds.
_REFILL_S: Final = 4.0
# Between the end of a process of streams and the next one.
_RESTART_S: Final = 1.0
# Other requests go first where processors are short.
_NICENESS: Final = 5
# Connections taken in one turn of the loop.
_TAKEN_AT_ONCE: Final = 16


def _answer(error: TrainmasterError) -> bytes:
    """A whole response, after which the connection is closed."""
    response = problem_response(problem_of(error, None), {"Retry-After": "1", "Connection": "close"})
    lines = [b"HTTP/1.1 %d %b" % (error.status, HTTPStatus(error.status).phrase.encode())]
    lines += [name + b": " + value for name, value in response.raw_headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + bytes(response.body)


_TOO_MANY: Final = _answer(
    TooManyRequests("This caller opens too many streams; follow several jobs by one stream of `GET /api/v1/events`.")
)
_BUSY: Final = _answer(Unavailable("Too many streams are being opened; try again in a second."))


def is_stream(head: bytes) -> bool:
    """Whether the head of a request asks for a stream."""
    return _STREAM.match(head) is not None


class StreamProcess:
    """The API's side of the process of streams. ``pid``: of the process that restarts it. ``streams_per_user``: half
    of the streams that a caller may open at once; see ``_REFILL_S``. More are refused before they cost anything.
    """

    def __init__(self, control: socket.socket, pid: int, streams_per_user: int) -> None:
        self._opened = TokenBuckets(2 * streams_per_user, streams_per_user / _REFILL_S)
        control.setblocking(False)
        self._control = control
        self._pid = pid
        self._lock = threading.Lock()

    def hand_over(self, connection_fd: int, head: bytes, address: str) -> bytes:
        """Give the connection of this address away, which the caller then closes. Returns a refusal to send instead;
        empty: the connection was taken.

        Raises:
            OSError: there is no process of streams any more.
        """
        lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
        headers = Headers(raw=[(name.lower(), value.strip()) for name, _, value in lines])
        key = caller_key({"client": (address, 0)}, headers)
        if self._opened.wait_s(key):
            return _TOO_MANY
        self._opened.take(key)
        try:
            socket.send_fds(self._control, [head], [connection_fd])
        except BlockingIOError:
            return _BUSY
        return b""

    def collect(self) -> list[Metric]:
        """The metrics of the process of streams; none when it does not answer soon. Blocks."""
        with self._lock, suppress(OSError):
            self._control.send(_ASK_FOR_METRICS)
            until = time.monotonic() + _METRICS_S
            while select.select([self._control], [], [], max(0.0, until - time.monotonic()))[0]:
                answer = self._control.recv(_MESSAGE_LIMIT)
                if not select.select([self._control], [], [], 0)[0]:  # an older answer came too late
                    return _metrics_from(answer)
        return []

    def end_streams(self) -> None:
        """End all streams in good order, and then the process."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def wait(self, within_s: float) -> None:
        """Wait for its end, for at most ``within_s``."""
        with suppress(ProcessLookupError, ChildProcessError):
            handle = os.pidfd_open(self._pid)
            select.select([handle], [], [], within_s)
            os.close(handle)


def start_stream_process(
    app: FastAPI, config: uvicorn.Config, inherited: Iterable[socket.socket] = ()
) -> StreamProcess:
    """Fork the process of streams, before this process has threads, an event loop or connections.

    ``inherited``: sockets of this process that the other one must not hold open.
    """
    api_end, stream_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        stream_end.close()
        context: AppContext = app.state.context
        return StreamProcess(api_end, pid, context.settings.streams_per_user)
    for unused in (api_end, *inherited):
        unused.close()
    # They end when the API has closed its side: a signal to all processes at once must not end streams before that.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    return _supervise(lambda: _serve(app, config, stream_end))


def _supervise(serve: Callable[[], None]) -> NoReturn:
    """Run ``serve`` in a child, again until it ends well. This process has no threads, so that it can fork always."""
    while True:
        pid = os.fork()
        if pid == 0:
            try:
                serve()
            except BaseException:
                log.exception("streams.failed")
                os._exit(1)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status == 0:
            os._exit(0)
        log.warning("streams.restarted", exit_code=status)
        select.select([], [], [], _RESTART_S)


def _serve(app: FastAPI, config: uvicorn.Config, control: socket.socket) -> None:
    gc.enable()
    os.nice(_NICENESS)
    if not config.loaded:
        config.load()
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(StreamServer(app, config, control).run())


class StreamServer:
    """Serves the connections that come over ``control``, until that is closed."""

    def __init__(self, app: FastAPI, config: uvicorn.Config, control: socket.socket) -> None:
        control.setblocking(False)
        self._config = config
        self._control = control
        self._context: AppContext = app.state.context
        self._shutdown: GracefulShutdown = app.state.shutdown
        self._state = ServerState()
        self._state.default_headers = [(b"connection", b"close")]
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        settings = self._context.settings
        self._context.request_metrics.process = process_name()
        current_default_thread_limiter().total_tokens = 2 * settings.database_pool_size
        loop = asyncio.get_running_loop()
        loop.add_reader(self._control, self._receive)
        await self._ended.wait()
        loop.remove_reader(self._control)
        self._shutdown.is_draining = self._shutdown.is_stopping = True
        until = loop.time() + settings.shutdown_grace_s
        while (self._state.connections or self._tasks) and loop.time() < until:  # noqa: ASYNC110 (a plain set)
            await asyncio.sleep(0.02)

    def _receive(self) -> None:
        for _ in range(_TAKEN_AT_ONCE):
            try:
                message, fds, _, _ = socket.recv_fds(self._control, _MESSAGE_LIMIT, 1)
            except BlockingIOError:
                return
            except OSError:
                message, fds = b"", []
            if not message:
                self._ended.set()
                return
            if fds:
                task = asyncio.get_running_loop().create_task(self._connect(fds[0], message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif message == _ASK_FOR_METRICS:
                with suppress(OSError):
                    self._control.send(_metrics_as_json(self._context))

    async def _connect(self, fd: int, head: bytes) -> None:
        connection = socket.socket(fileno=fd)
        loop = asyncio.get_running_loop()
        make_protocol: Any = self._config.http_protocol_class
        protocol = make_protocol(config=self._config, server_state=self._state, app_state={}, _loop=loop)
        try:
            await loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError:
            connection.close()
            return
        if not protocol.transport.is_closing():
            protocol.data_received(head)


def _metrics_as_json(context: AppContext) -> bytes:
    metrics = context.request_metrics
    return orjson.dumps(
        [
            (family.name, family.documentation, family.type, [(s.name, s.labels, s.value) for s in family.samples])
            for family in metrics.collect()
        ]
    )


def _metrics_from(answer: bytes) -> list[Metric]:
    found = []
    families: Sequence[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]] = orjson.loads(answer)
    for name, documentation, kind, samples in families:
        family = Metric(name, documentation, kind)
        for sample in samples:
            family.add_sample(*sample)
        found.append(family)
    return found
