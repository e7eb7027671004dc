"""Applies the projects' retention policies in batches, and warns of full disks.

A batch is marked, its files are deleted, then its rows: a process that is killed in between is followed by the next,
which finds the marks. Each batch leaves one event of its project.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import structlog
from sqlalchemy import select

from core.db.engine import unit_of_work
from core.db.repositories import retention
from core.db.repositories.events import DISK_OK, DISK_WARNING, append_event, last_event_of
from core.db.repositories.storage_usage import request_measurement
from core.db.tables import Job, Volume
from core.domain.errors import TrainmasterError
from core.domain.sharing.retention import DataKind, age_text, parse_retention
from core.settings import Settings
from core.storage.logs.files import FOLDER as LOGS
from core.storage.tree import Tree
from core.storage.volumes import has_own_output, tree_of
from scheduler.control.context import ControlContext
from scheduler.control.journal import SCHEDULER

log = structlog.get_logger(__name__)

EXPIRED: Final = "retention.applied"
_BATCH: Final = 100
_EVENTS: Final = 500  # deleted at once
_NAMED: Final = 10  # jobs in an event
_BATCHES: Final = 50  # of a kind in one run, the next of which is minutes away
_OWN: Final = ".trainmaster"
# Percentage points below the threshold at which a warned disk counts as well again.
_HYSTERESIS: Final = 3.0
_FILES: Final = (DataKind.OUTPUTS, DataKind.LOGS, DataKind.JOBS)


def apply_policies(control: ControlContext) -> int:
    """Delete what the policies give up; returns the number of jobs, counted once for each kind."""
    with unit_of_work(control.sessions, read_only=True) as session:
        policies = {row.id: parse_retention(row.retention) for row in retention.projects_with_policies(session)}
    done = 0
    for project_id, policy in policies.items():
        _finish_earlier(control, project_id)
        for kind in DataKind:
            if kind in policy:
                done += _apply(control, project_id, kind, policy[kind])
        if DataKind.EVENTS in policy:
            _delete_project_events(control, project_id, timedelta(seconds=policy[DataKind.EVENTS]))
    return done


def _delete_project_events(control: ControlContext, project_id: str, age: timedelta) -> None:
    for _ in range(_BATCHES):
        with unit_of_work(control.sessions) as session:
            before = control.clock() - age
            if retention.delete_project_events(session, project_id, before, _EVENTS) < _EVENTS:
                return


def _apply(control: ControlContext, project_id: str, kind: DataKind, age_s: float) -> int:
    done = 0
    for _ in range(_BATCHES):
        now = control.clock()
        query = retention.expired_jobs(project_id, kind, now - timedelta(seconds=age_s)).limit(_BATCH)
        with unit_of_work(control.sessions) as session:
            ids = retention.begin_expiry(session, session.scalars(query).all(), kind, now)
        done += _delete(control, project_id, kind, ids, f"{kind.value} older than {age_text(age_s)}")
        if len(ids) < _BATCH:
            break
    return done


def _finish_earlier(control: ControlContext, project_id: str) -> None:
    with unit_of_work(control.sessions, read_only=True) as session:
        found = retention.unfinished_expiries(session, project_id, _BATCH)
        pending = [(job.id, DataKind((job.expired or {})[retention.PENDING])) for job in found]
    for kind in {kind for _, kind in pending}:
        ids = [job_id for job_id, of in pending if of is kind]
        _delete(control, project_id, kind, ids, f"{kind.value}, begun earlier")


def _delete(control: ControlContext, project_id: str, kind: DataKind, job_ids: Sequence[str], what: str) -> int:
    """Delete the data of marked jobs. A job whose volume is away keeps its mark, until it is back."""
    done = _without_files(control, kind, job_ids) if kind in _FILES else list(job_ids)
    if not done:
        return 0
    with unit_of_work(control.sessions) as session:
        retention.finish_expiry(session, done, kind)
        jobs = "1 ended job" if len(done) == 1 else f"{len(done)} ended jobs"
        reason = f"The project's retention deleted of {jobs}: {what}."
        data = {"kind": kind.value, "count": len(done), "jobs": done[:_NAMED]}
        append_event(
            session, at=control.clock(), kind=EXPIRED, actor=SCHEDULER, project_id=project_id, reason=reason, data=data
        )
        request_measurement(session, project_id, control.clock())
    log.info(EXPIRED, project=project_id, kind=kind.value, jobs=len(done))
    return len(done)


def _without_files(control: ControlContext, kind: DataKind, job_ids: Sequence[str]) -> list[str]:
    with unit_of_work(control.sessions, read_only=True) as session:
        jobs = session.scalars(select(Job).where(Job.id.in_(job_ids))).all()
        names = {job.output_volume for job in jobs}
        volumes = session.scalars(select(Volume).where(Volume.name.in_(names))).all()
    trees = {volume.name: tree_of(volume) for volume in volumes if volume.root is not None}
    done = []
    for job in jobs:
        try:
            # Files of deleted jobs were left by their users; others may be reached from jobs only. Both stay.
            if job.deleted_at is None and job.output_volume in trees:
                _delete_files(trees[job.output_volume], job, kind)
            done.append(job.id)
        except (TrainmasterError, OSError) as error:
            log.warning("retention.not_applied", job=job.id, kind=kind.value, why=str(error))
    return done


def _delete_files(tree: Tree, job: Job, kind: DataKind) -> None:
    """An output that the spec named may have files of other jobs: only the job's logs are deleted there."""
    is_own = has_own_output(job)
    if kind is DataKind.JOBS and is_own:
        tree.delete(job.output_path)
    elif kind is DataKind.OUTPUTS and is_own and tree.exists(job.output_path):
        for name in tree.names(job.output_path):
            if name != _OWN:
                tree.delete(f"{job.output_path}/{name}")
    elif kind is not DataKind.OUTPUTS:
        tree.delete(f"{job.output_path}/{LOGS}/{job.id}")


def check_disks(control: ControlContext, settings: Settings) -> None:
    """One event when a disk of the platform becomes fuller than the settings' threshold, and one when it is not so any
    more. :mod:`api.health` shows the former.
    """
    full = _full_disks(control, settings, settings.disk_warning_percent)
    with unit_of_work(control.sessions) as session:
        before = last_event_of(session, (DISK_WARNING, DISK_OK))
        was_full = before is not None and before.kind == DISK_WARNING
        if full and not was_full:
            reason = " ".join(full.values())
            data = {"folders": list(full)}
            append_event(session, at=control.clock(), kind=DISK_WARNING, actor=SCHEDULER, reason=reason, data=data)
            log.error(DISK_WARNING, why=reason)
        elif was_full and not _full_disks(control, settings, settings.disk_warning_percent - _HYSTERESIS):
            reason = "The platform's disks have room again."
            append_event(session, at=control.clock(), kind=DISK_OK, actor=SCHEDULER, reason=reason)


def used_ratio(folder: str | Path) -> float:
    """Of the folder's disk, 0 to 1. Raises ``OSError``: it is away."""
    usage = shutil.disk_usage(folder)
    return 1.0 - usage.free / usage.total if usage.total else 0.0


def _full_disks(control: ControlContext, settings: Settings, percent: float) -> Mapping[str, str]:
    with unit_of_work(control.sessions, read_only=True) as session:
        roots = session.scalars(select(Volume.root).where(Volume.root.is_not(None))).all()
    found: dict[int, tuple[str, str]] = {}
    for folder in (str(settings.home), *(root for root in roots if root)):
        try:
            device, used, free = Path(folder).stat().st_dev, 100 * used_ratio(folder), shutil.disk_usage(folder).free
        except OSError:
            continue  # a volume that is away is reported elsewhere
        if used >= percent and device not in found:
            room = f"The disk of {folder} is {used:.0f} % full ({free / 2**30:.1f} GiB free)"
            found[device] = (folder, f"{room}: free some space, or let data expire (`trainmaster retention`).")
    return dict(found.values())
