"""Measurement of the projects' storage, and what follows for their running jobs.

One thread of each scheduler walks one project after another, each under its lease, at a bounded rate: a shared file
system serves training first.
"""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.engine import unit_of_work
from core.db.repositories import storage_usage
from core.db.repositories.events import append_event
from core.db.repositories.storage_usage import MeasuredRow
from core.db.tables import Volume
from core.domain.errors import Conflict, TrainmasterError, Unavailable
from core.domain.sharing.storage import FULL_LEVEL, StorageKind, StorageState
from core.storage.disk_usage import DiskUsage
from core.storage.registry import FOLDER as MODELS
from core.storage.tree import Tree
from core.storage.volumes import UPLOADS, tree_of
from scheduler.control import fence
from scheduler.control.context import ControlContext
from scheduler.control.fence import RenewedLease
from scheduler.control.journal import SCHEDULER, Journal
from scheduler.control.leased_loop import PollingWorker

log = structlog.get_logger(__name__)

STORAGE_LEASE: Final = "storage"
STORAGE_WARNING: Final = "storage.warning"
STORAGE_FULL: Final = "storage.full"
_POLL_S: Final = 15.0
_BATCH_SIZE: Final = 100
_RETRY_AFTER: Final = timedelta(minutes=2)
# Entries of folders that one scheduler reads in a second, on average.
ENTRIES_PER_S: Final = 10_000


class MeterStopping(Exception):
    """The process is stopping: the next scheduler measures."""


class StorageMeter:
    """Measures the projects that are due, in a thread; one per process."""

    def __init__(self, control: ControlContext) -> None:
        self._control = control
        self._stopping = threading.Event()
        self._worker = PollingWorker("storage", "storage-meter", self.work, threads=1, every_s=_POLL_S)

    def start(self) -> None:
        """Start with the projects that are due, and go on polling. Returns at once."""
        self._worker.start()

    def close(self) -> None:
        """Stop within one batch of entries; the next scheduler measures again."""
        self._stopping.set()
        self._worker.close()

    def work(self) -> None:
        """Measure the projects that are due.

        Raises:
            Unavailable: the database is away.
        """
        with unit_of_work(self._control.sessions, read_only=True) as session:
            due = storage_usage.due_projects(session, self._control.clock(), _BATCH_SIZE)
        for project_id in due:
            try:
                self.measure(project_id)
            except MeterStopping:
                return
            except Unavailable:
                raise
            except (TrainmasterError, OSError) as error:
                log.warning("storage.not_measured", project=project_id, why=str(error))
                with unit_of_work(self._control.sessions) as session:
                    storage_usage.delay_measurement(session, project_id, self._control.clock() + _RETRY_AFTER)

    def measure(self, project_id: str) -> bool:
        """Measure one project now; false: it was deleted, or another scheduler measures it.

        Raises:
            Conflict: a volume is away; the last measurement stays.
        """
        with fence.leased(self._control, f"{STORAGE_LEASE}:{project_id}") as lease:
            return lease is not None and self._measure(project_id, lease)
        return False  # another process took the lease over

    def _measure(self, project_id: str, lease: RenewedLease) -> bool:
        control = self._control
        with unit_of_work(control.sessions, read_only=True) as session:
            before = storage_usage.load_measured(session, project_id, control.default_volume, control.clock())
            names = [] if before is None else [control.default_volume, *(volume for volume, _ in before.outputs)]
            volumes = session.scalars(select(Volume).where(Volume.name.in_(names))).all()
            trees = {volume.name: tree_of(volume) for volume in volumes if volume.root is not None}
        if before is None:
            return False
        begin_s = time.monotonic()
        usage = DiskUsage(_Pace(self._stopping, lease))
        try:
            parts = _parts(usage, before, trees, control.default_volume)
        except Unavailable as away:  # the database is not
            raise Conflict(away.sentence) from away
        duration_s = time.monotonic() - begin_s
        with lease.write() as session:
            now = control.clock()
            state = storage_usage.save_measurement(
                session, project_id, parts, before=before, unreadable=usage.unreadable, duration_s=duration_s, now=now
            )
            level = state.level(before.level)
            if level > before.level:
                announce(session, project_id, state, level, now)
        return True


class _Pace:
    """Keeps the rate of a walk, and its lease. Raises ``MeterStopping``, ``StaleWrite``."""

    def __init__(self, stopping: threading.Event, lease: RenewedLease) -> None:
        self._stopping, self._lease = stopping, lease
        self._ready_at_s = time.monotonic()

    def __call__(self, entries: int) -> None:
        self._lease.renew_if_due()
        now_s = time.monotonic()
        # A slow file system saves up no burst.
        self._ready_at_s = max(self._ready_at_s, now_s - 1.0) + entries / ENTRIES_PER_S
        if self._stopping.wait(max(0.0, self._ready_at_s - now_s)):
            raise MeterStopping


def _parts(
    usage: DiskUsage, before: MeasuredRow, trees: dict[str, Tree], default_volume: str
) -> dict[StorageKind, int]:
    """Bytes by kind.

    Raises:
        Unavailable: a volume is away.
        Conflict: the control plane does not see the volume of the projects' own folders.
    """
    own = trees.get(default_volume)
    if own is None:
        raise Conflict(f"Volume {default_volume!r} is not registered, or the control plane does not see it.")
    project = before.project
    outputs = usage.measure(own, project, skips=(UPLOADS,))
    for volume, path in before.outputs:
        if volume in trees:
            outputs += usage.measure(trees[volume], path)
    uploads = usage.measure(own, f"{project}/{UPLOADS}") + usage.measure_files(own, UPLOADS, prefix=f"{project}.")
    return {
        StorageKind.OUTPUTS: outputs,
        StorageKind.ARCHIVES: before.archive_bytes,
        StorageKind.UPLOADS: uploads,
        StorageKind.MODELS: usage.measure(own, f"{MODELS}/{project}"),
        StorageKind.METRICS: before.metric_bytes,
    }


def announce(session: Session, project_id: str, state: StorageState, level: int, now: datetime) -> None:
    """One event of the project, and one of each of its running jobs, which go on."""
    kind = STORAGE_FULL if level == FULL_LEVEL else STORAGE_WARNING
    reason = state.warnings()[0]
    data = {"project": state.project, "used_bytes": state.used_bytes, "limit_bytes": state.limit_bytes, "level": level}
    append_event(session, at=now, kind=kind, actor=SCHEDULER, project_id=project_id, reason=reason, data=data)
    for job_id in storage_usage.running_jobs(session, project_id):
        Journal(session, project_id, job_id).add(kind, reason, at=now, data=data)
    log.warning(kind, **data)
