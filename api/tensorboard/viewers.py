"""The pool of TensorBoards of this API process: one for each set of jobs, a limited number, ended when idle.

None outlives the process. Another API process that gets a request for the same jobs starts its own: a TensorBoard has
no state but what it has read, so nothing is shared, and an address is valid at each API process.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import structlog

from core.domain.errors import Conflict, Unavailable
from core.settings import Settings

log = structlog.get_logger(__name__)

_START_S: Final = 60.0
_STOP_S: Final = 5.0
_IDLE_CHECK_S: Final = 5.0  # interval of the check for idle ones
_ANSWER_S: Final = 120.0  # a large run's first chart
_LOG_CHARS: Final = 2_000  # of the output of one that did not start
# An allow-list: the platform's environment has its secret key and its database password.
_ENVIRONMENT_VARIABLES: Final = ("PATH", "LANG", "LC_ALL", "TZ", "HOME", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class ViewedOutput:
    """A job's output for TensorBoard: its name there, the volume's root, and the path in it."""

    name: str
    root: str
    base: str


@dataclass(slots=True)
class Viewer:
    """A running TensorBoard."""

    process: asyncio.subprocess.Process
    client: httpx.AsyncClient
    folder: Path
    used_at_s: float
    open_requests: int = 0
    startup_log: list[str] = field(default_factory=list)
    drain: asyncio.Task[None] | None = None

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None


StartViewer = Callable[[Sequence[ViewedOutput], int, float], Awaitable[Viewer]]


class Viewers:
    """Starts and ends TensorBoards. ``running`` has all that run. ``start``: as :func:`start_viewer`."""

    def __init__(
        self, settings: Settings, *, clock_s: Callable[[], float] = time.monotonic, start: StartViewer | None = None
    ) -> None:
        self._limit = settings.tensorboard_limit
        self._memory_bytes = settings.tensorboard_memory_bytes
        self._idle_s = settings.tensorboard_idle_s
        self._clock_s = clock_s
        self._start = start or start_viewer
        self._starting: dict[str, asyncio.Lock] = {}
        self.running: dict[str, Viewer] = {}

    @asynccontextmanager
    async def lifetime(self) -> AsyncIterator[None]:
        """Ends idle TensorBoards, and all at the block's end."""
        idle_checker = asyncio.create_task(self._end_idle_forever())
        try:
            yield
        finally:
            idle_checker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await idle_checker
            await asyncio.gather(*(self._end(key) for key in list(self.running)))

    @asynccontextmanager
    async def use(self, key: str, outputs: Sequence[ViewedOutput]) -> AsyncIterator[httpx.AsyncClient]:
        """A client of the TensorBoard for ``key``, started if there is none; it is not ended inside the block.

        Raises:
            Conflict: TensorBoard is not installed here.
            Unavailable: the maximum number is in use, or it did not start.
        """
        viewer = await self._get(key, outputs)
        viewer.open_requests += 1
        try:
            yield viewer.client
        finally:
            viewer.open_requests -= 1
            viewer.used_at_s = self._clock_s()

    async def end_idle(self) -> None:
        """End those without requests for ``idle_s``, and remove dead ones."""
        now_s = self._clock_s()
        for key, viewer in list(self.running.items()):
            is_idle = viewer.open_requests == 0 and now_s - viewer.used_at_s >= self._idle_s
            if is_idle or not viewer.is_alive:
                await self._end(key)

    async def _end_idle_forever(self) -> None:
        while True:
            await asyncio.sleep(_IDLE_CHECK_S)
            await self.end_idle()

    async def _get(self, key: str, outputs: Sequence[ViewedOutput]) -> Viewer:
        # Single-flight for each set of jobs: the first page sends many requests at once.
        lock = self._starting.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                viewer = self.running.get(key)
                if viewer is not None and viewer.is_alive:
                    return viewer
                if viewer is not None:
                    await self._end(key)
                await self._make_room()
                viewer = await self._start(outputs, self._memory_bytes, self._clock_s())
                self.running[key] = viewer
                return viewer
        finally:
            if not lock.locked():
                self._starting.pop(key, None)

    async def _make_room(self) -> None:
        await self.end_idle()
        starting = sum(1 for key, lock in self._starting.items() if lock.locked() and key not in self.running)
        if len(self.running) + starting <= self._limit:
            return
        unused = [(viewer.used_at_s, key) for key, viewer in self.running.items() if viewer.open_requests == 0]
        if not unused:
            raise Unavailable(
                f"All {self._limit} TensorBoards that may run at once are busy; try again in a moment.",
                retry_after_s=10.0,
            )
        await self._end(min(unused)[1])

    async def _end(self, key: str) -> None:
        viewer = self.running.pop(key, None)
        if viewer is not None:
            await _stop(viewer)
            log.info("tensorboard.ended", pid=viewer.process.pid)


async def start_viewer(outputs: Sequence[ViewedOutput], memory_bytes: int, now_s: float) -> Viewer:
    """Start a TensorBoard for ``outputs``; it responds already.

    Raises:
        Conflict: TensorBoard is not installed here.
        Unavailable: it did not start.
    """
    demand_installed()
    # In /tmp: a socket's path has at most 107 bytes, and home's may be long.
    folder = Path(tempfile.mkdtemp(prefix="trainmaster-tensorboard-"))
    socket = folder / "socket"
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "api.tensorboard.viewer",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=folder,
            env=_environment(),
        )
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise Unavailable("TensorBoard could not be started; try again in a moment.", retry_after_s=10.0) from error
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    client = httpx.AsyncClient(transport=transport, base_url="http://tensorboard", timeout=_ANSWER_S)
    viewer = Viewer(process, client, folder, now_s)
    order: dict[str, Any] = {
        "socket": str(socket),
        "memory_bytes": memory_bytes,
        "outputs": [{"name": output.name, "root": output.root, "base": output.base} for output in outputs],
    }
    try:
        assert process.stdin is not None  # noqa: S101 (asked for above)
        process.stdin.write(json.dumps(order).encode() + b"\n")
        async with asyncio.timeout(_START_S):
            await _until_ready(viewer)
    except (TimeoutError, OSError, EOFError) as error:
        await _stop(viewer)
        log.warning("tensorboard.not_started", startup_log="".join(viewer.startup_log)[-_LOG_CHARS:])
        raise Unavailable("TensorBoard did not start; try again in a moment.", retry_after_s=10.0) from error
    except BaseException:
        await _stop(viewer)
        raise
    log.info("tensorboard.started", pid=process.pid, jobs=len(outputs))
    return viewer


def demand_installed() -> None:
    """Raises ``Conflict`` where TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise Conflict(
            "TensorBoard is not installed with this platform; an admin adds it with `pip install 'tensorboard>=2.21'` "
            "in the API's environment."
        )


def _environment() -> dict[str, str]:
    known = {name: os.environ[name] for name in _ENVIRONMENT_VARIABLES if name in os.environ}
    single_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")  # each thread's buffer is 32 MB
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109 (what "" means there)
    return {**known, **single_thread, "MALLOC_ARENA_MAX": "2", "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


async def _until_ready(viewer: Viewer) -> None:
    assert viewer.process.stdout is not None  # noqa: S101 (asked for at the start)
    while line := await viewer.process.stdout.readline():
        if line == b"ready\n":
            # Further output is read and dropped, or it would block on a full pipe.
            viewer.drain = asyncio.create_task(_drain(viewer.process.stdout))
            return
        viewer.startup_log.append(line.decode("utf-8", "replace"))
    raise EOFError("it ended")


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(65_536):
        pass


async def _stop(viewer: Viewer) -> None:
    await viewer.client.aclose()
    if viewer.process.stdin is not None:
        viewer.process.stdin.close()  # it ends by itself
    try:
        async with asyncio.timeout(_STOP_S):
            await viewer.process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            viewer.process.kill()
        await viewer.process.wait()
    shutil.rmtree(viewer.folder, ignore_errors=True)
