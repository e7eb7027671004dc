"""A pod's log: the lines of one replica in one attempt, as text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import anyio
from anyio import CapacityLimiter, to_thread
from sqlalchemy.orm import Session

from api.app.graceful_shutdown import GracefulShutdown
from api.protocols.kubeflow.jobs import Pod
from core.db.tables import Attempt
from core.domain.errors import TrainmasterError, Unavailable
from core.domain.jobs.states import AttemptState
from core.storage.logs.files import JobLogs, parse_line
from core.storage.logs.merge import LogMerge, Selection, newest_position
from core.storage.outputs import job_output

# Seconds between two reads of the file; the attempt's state is read once per so many polls.
_POLL_S: Final = 0.5
_POLLS_PER_STATE_READ: Final = 4


def open_log(session: Session, pod: Pod, *, tail_lines: int | None) -> LogMerge:
    """Raises ``Conflict``: the control plane does not see the volume. Blocks on the disk."""
    logs = JobLogs(job_output(session, pod.job), pod.job.id)
    selection = Selection(attempt=pod.attempt.number, role=pod.replica.role, index=pod.replica.index)
    return LogMerge(logs, selection, newest_position(logs, selection, tail_lines=tail_lines))


def has_ended(session: Session, attempt_id: str) -> bool:
    attempt = session.get(Attempt, attempt_id)
    return attempt is None or attempt.state == AttemptState.ENDED


@dataclass(slots=True)
class PodLog:
    """A stream of log text. ``is_over``: whether the attempt has ended; raises once the caller lost access."""

    merge: LogMerge
    is_over: Callable[[], Awaitable[bool]]
    shutdown: GracefulShutdown
    limiter: CapacityLimiter

    async def chunks(self, *, follow: bool) -> AsyncIterator[bytes]:
        """The current text; with ``follow`` until the attempt has ended."""
        polls = 0
        is_final = not follow
        while not self.shutdown.is_stopping:
            if follow and polls % _POLLS_PER_STATE_READ == 0:
                try:
                    # Read before the file, so all output of an ended attempt is read.
                    is_final = await self.is_over()
                except Unavailable:
                    pass  # the database is unavailable: keep streaming
                except TrainmasterError:
                    return
            polls += 1
            has_more = True
            while has_more and not self.shutdown.is_stopping:
                text, has_more = await to_thread.run_sync(self._read, is_final, limiter=self.limiter)
                if text:
                    yield text
            if is_final:
                return
            await anyio.sleep(_POLL_S)

    def _read(self, is_final: bool) -> tuple[bytes, bool]:
        self.merge.refresh()
        lines = self.merge.step(is_final=is_final)
        return b"".join(parse_line(line.raw).text.encode() + b"\n" for line in lines), self.merge.has_more
