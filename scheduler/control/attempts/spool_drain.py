"""Draining spooled reports: reports that replicas could not send are read at the end of an attempt, before it is
written.

So a trial that ends while the API is away, or whose node dies meanwhile, keeps the metrics that it reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import structlog
from sqlalchemy.orm import Session

from core.domain.errors import ExecutorTryAgain, StaleWrite, TrainmasterError, Unavailable
from core.domain.ids import AttemptId
from core.reports import ingest_report
from core.storage import spooled_reports
from core.storage.spooled_reports import FILE_BYTES, ReplicaStart, SpooledLines, find_spools, place_of, read_spool
from core.storage.tree import Tree
from core.tokens import attempt_token
from scheduler.control.attempts.launching.resume import load_outputs
from scheduler.control.attempts.reconcile_result import ReconcilerCache
from scheduler.control.attempts.storage.attempt_loader import AttemptRows
from scheduler.control.attempts.storage.effects import Effects, RenewLease, RunRead, RunWrite
from scheduler.control.context import ControlContext

log = structlog.get_logger(__name__)

# How long an attempt's end waits for the volume of its output. A replica whose volume is away has mostly spooled
# nothing.
_PATIENCE: Final = timedelta(seconds=60)
_RETRY_S: Final = 5.0
# Limits of one attempt: a job that writes endless signed files takes up no more of the control loop.
ATTEMPT_BYTES: Final = 256 * 2**20
ATTEMPT_LINES: Final = 2_000_000
_FIND_AT_ONCE: Final = 1_000  # file names


def drain_spool(control: ControlContext, rows: AttemptRows, cache: ReconcilerCache) -> Effects[bool]:
    """Ingest the spooled reports, once; true where there were any: then the rows know more than before.

    Raises:
        ExecutorTryAgain: the volume of the output is away, for less than a minute so far.
    """
    if cache.is_spool_drained or rows.attempt.layout is None:
        return False
    try:
        return (yield from _take_all(control, rows, cache))
    except _VolumeAway as away:
        cache.volume_away_since = cache.volume_away_since or control.clock()
        if control.clock() - cache.volume_away_since < _PATIENCE:
            raise ExecutorTryAgain(away.sentence, retry_after_s=_RETRY_S) from away
        log.warning("reports.not_read", attempt=rows.attempt.id, why=away.sentence)
        cache.is_spool_drained = True
        return False


def delete_spool(rows: AttemptRows, cache: ReconcilerCache) -> None:
    """Delete the ingested files after the end is written. On a volume that is away they stay."""
    if cache.spool_tree is None:
        return
    try:
        spooled_reports.remove_spools(cache.spool_tree, _folder(rows), cache.spool_starts)
    except (TrainmasterError, OSError) as error:
        log.info("reports.undrained", attempt=rows.attempt.id, why=str(error))


class _VolumeAway(Exception):
    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class _Lease:
    """Renews the lease while much is read."""

    def __init__(self, control: ControlContext) -> None:
        self._control = control
        self._renewed_at = control.clock()

    def keep(self) -> Effects[None]:
        if self._control.clock() - self._renewed_at > self._control.lease_ttl / 3:
            yield RenewLease()
            self._renewed_at = self._control.clock()


def _take_all(control: ControlContext, rows: AttemptRows, cache: ReconcilerCache) -> Effects[bool]:
    sources = yield RunRead(lambda session: load_outputs(session, [rows.job])[0])
    output: Tree | None = sources.output
    if output is None:
        return False
    lease = _Lease(control)
    spooled = yield from _find(output, rows, lease)
    token = attempt_token(control.secret_key, rows.attempt.id)
    bytes_left, lines_left = ATTEMPT_BYTES, ATTEMPT_LINES
    for start, size in spooled.items():
        bytes_left -= size if size <= FILE_BYTES else 0  # larger files are not read
        yield from lease.keep()
        if bytes_left >= 0:
            reports = read_spool(output, _folder(rows), start, token)
            lines_left -= yield from _take(control, rows.attempt.id, reports, lease, lines_left)
        if bytes_left < 0 or lines_left < 0:
            log.warning("reports.too_many", attempt=rows.attempt.id, replica=f"{start.role}-{start.index}")
            break
        log.info("reports.drained", attempt=rows.attempt.id, replica=f"{start.role}-{start.index}")
    cache.is_spool_drained = True
    if spooled:
        cache.spool_tree, cache.spool_starts = output, tuple(spooled)
    return bool(spooled)


def _find(output: Tree, rows: AttemptRows, lease: _Lease) -> Effects[dict[ReplicaStart, int]]:
    started = sorted({ReplicaStart(m.role, m.index, n) for m in rows.members for n in range(1, m.generation + 1)})
    spooled: dict[ReplicaStart, int] = {}
    for begin in range(0, len(started), _FIND_AT_ONCE):
        yield from lease.keep()
        try:
            spooled |= find_spools(output, _folder(rows), started[begin : begin + _FIND_AT_ONCE])
        except (Unavailable, OSError) as away:
            raise _VolumeAway(str(away)) from away
    return spooled


def _take(
    control: ControlContext, attempt_id: AttemptId, reports: Iterator[SpooledLines], lease: _Lease, limit: int
) -> Effects[int]:
    """Number of lines read; reading stops beyond ``limit``."""
    read = 0
    while read <= limit and (lines := _next(reports)) is not None:
        read += len(lines.lines)
        yield from lease.keep()
        try:
            yield RunWrite(partial(_write, attempt_id=attempt_id, lines=lines, now=control.clock()))
        except (Unavailable, StaleWrite):
            raise
        except TrainmasterError as no:  # as for a deleted job
            log.info("reports.rejected", attempt=attempt_id, why=str(no))
            return read
        except Exception:  # whatever a job wrote there, it must not block its end
            log.exception("reports.failed", attempt=attempt_id)
    return read


def _next(reports: Iterator[SpooledLines]) -> SpooledLines | None:
    try:
        return next(reports, None)
    except (Unavailable, OSError) as away:
        raise _VolumeAway(str(away)) from away


def _write(session: Session, *, attempt_id: AttemptId, lines: SpooledLines, now: datetime) -> None:
    # Parsed only here, one attempt after the other: of many that end at once not all have their reports in memory.
    report = lines.report()
    if report.items:
        ingest_report(session, attempt_id, report, now=now, is_spooled=True)


def _folder(rows: AttemptRows) -> str:
    return place_of(rows.job.id, rows.attempt.number)
