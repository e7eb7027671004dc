"""The driver's log lines as Ray shows them: the whole text, or a stream."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import anyio
from anyio import CapacityLimiter, to_thread

from api.app.graceful_shutdown import GracefulShutdown
from api.protocols.ray.mapping import ROLE
from core.domain.errors import NotFound, Unavailable
from core.storage.logs.files import LINE_LIMIT, JobLogs, parse_line
from core.storage.logs.merge import LogMerge, Selection, newest_position

# Limit of one response; earlier lines are on the job's page.
TEXT_LIMIT: Final = 16 * 2**20
SELECTION: Final = Selection(role=ROLE, index=0)
# Seconds between two reads of the file, and of the job's status.
_POLL_S: Final = 0.25
_STATUS_S: Final = 1.0
_BATCH: Final = 500  # lines
_DRIVER: Final = f"{ROLE}-0"


@dataclass(frozen=True, slots=True)
class DriverStatus:
    """``waits``: wait reason; empty if the job does not wait, or the reason is unknown."""

    is_over: bool
    waits: str = ""


def read_text(logs: JobLogs) -> str:
    """The output of the newest attempt's driver, at most its last ``TEXT_LIMIT`` bytes. Blocks."""
    attempts = logs.attempts()
    if not attempts:
        return ""
    try:
        with logs.opened(attempts[-1], _DRIVER) as fd:
            size = os.fstat(fd).st_size
            start = max(0, size - TEXT_LIMIT)
            data = os.pread(fd, TEXT_LIMIT, start)
    except NotFound:
        return ""
    head = ""
    if start:
        data = data[data.find(b"\n", 0, LINE_LIMIT) + 1 :]
        head = f"[the last {TEXT_LIMIT // 2**20} MiB; the rest is at the job's page]\n"
    lines = data.split(b"\n")
    tail = [] if not lines[-1] else [lines[-1]]
    return head + "".join(f"{parse_line(line).text}\n" for line in [*lines[:-1], *tail])


async def follow(
    logs: JobLogs,
    read_status: Callable[[], Awaitable[DriverStatus]],
    wait: Callable[[float], Awaitable[bool]],
    *,
    shutdown: GracefulShutdown,
    limiter: CapacityLimiter,
) -> AsyncIterator[str]:
    """Stream lines from the newest attempt's first, across later attempts, until the job ends.

    While the job waits, each new wait reason is sent once. Ends early at shutdown.
    """
    position = await to_thread.run_sync(lambda: newest_position(logs, SELECTION, tail_lines=None), limiter=limiter)
    merge = LogMerge(logs, SELECTION, position)
    status = await read_status()
    read_at = anyio.current_time()
    last_reason = ""
    while not shutdown.is_stopping:
        if status.waits and status.waits != last_reason:
            last_reason = status.waits
            yield f"[trainmaster] waiting: {last_reason}\n"
        # The status was read before the file, so all output of an ended job is read.
        is_final = status.is_over
        await to_thread.run_sync(merge.refresh, limiter=limiter)
        while not shutdown.is_stopping:
            lines = await to_thread.run_sync(
                lambda: merge.step(max_lines=_BATCH, is_final=is_final),  # noqa: B023 (run before it changes)
                limiter=limiter,
            )
            if lines:
                yield "".join(f"{parse_line(line.raw).text}\n" for line in lines)
            if not merge.has_more:
                break
        if is_final:
            return
        has_news = await wait(_POLL_S)
        if has_news or anyio.current_time() - read_at >= _STATUS_S:
            read_at = anyio.current_time()
            try:
                status = await read_status()
            except Unavailable:
                continue  # the database is unavailable: keep streaming
