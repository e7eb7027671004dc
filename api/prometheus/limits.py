"""Gauges of what runs out: space of file systems, storage quotas and budgets of projects."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.app.unit_of_work import AppContext, UnitOfWork
from core.db.repositories.storage_usage import state_columns, state_of_row
from core.db.tables import BudgetRow, Project, StorageUsage
from core.domain.errors import TrainmasterError
from core.storage.volumes import read_room, tree_of

_LABEL: Final = ("volume",)
# A network file system that is away blocks a thread of the API: no second one.
_volumes_are_read = threading.Lock()


def home_space(context: AppContext) -> Iterator[GaugeMetricFamily]:
    """Of the file system with the platform's own files. Needs no database."""
    status = os.statvfs(context.settings.home)
    for name, blocks in (("free", status.f_bavail), ("size", status.f_blocks)):
        text = f"Bytes of the file system with the platform's own files: {name}."
        yield GaugeMetricFamily(f"trainmaster_home_{name}_bytes", text, value=blocks * status.f_frsize)


def volume_space(context: AppContext) -> Iterator[GaugeMetricFamily]:
    """Of all volumes whose files the API reaches. Nothing while an earlier call still waits for a file system."""
    free, size = (
        GaugeMetricFamily(
            f"trainmaster_volume_{name}_bytes", f"Bytes of a volume's file system: {name}.", labels=_LABEL
        )
        for name in ("free", "size")
    )
    if _volumes_are_read.acquire(blocking=False):
        try:
            for volume in context.volumes.all(context.clock()):
                if volume.root is not None:
                    with suppress(TrainmasterError, OSError):
                        room = read_room(tree_of(volume))
                        free.add_metric([volume.name], room.free)
                        size.add_metric([volume.name], room.total)
        finally:
            _volumes_are_read.release()
    yield from (free, size)


def project_limits(work: UnitOfWork, context: AppContext) -> Iterator[GaugeMetricFamily]:
    """What projects use of their storage quotas and monthly budgets; those without a limit have no sample."""
    storage = GaugeMetricFamily(
        "trainmaster_project_storage_used_ratio", "Part of a project's storage quota that is used.", labels=["project"]
    )
    for project, ratio in _storage_ratios(work.session):
        storage.add_metric([project], ratio)
    budget = GaugeMetricFamily(
        "trainmaster_project_budget_spent_ratio",
        "Part of a project's budget of this month that is spent.",
        labels=["project"],
    )
    query = select(Project.id, Project.name).join(BudgetRow, BudgetRow.project_id == Project.id)
    for project_id, name in work.session.execute(query.order_by(Project.name)).all():
        found = context.budgets.find(project_id, work.now)
        if found is not None and found.micros_per_month:
            budget.add_metric([name], found.spent_micros / found.micros_per_month)
    yield from (storage, budget)


def _storage_ratios(session: Session) -> Iterator[tuple[str, float]]:
    query = select(*state_columns()).outerjoin(StorageUsage, StorageUsage.project_id == Project.id)
    for row in session.execute(query.order_by(Project.name)):
        state = state_of_row(row)
        if state.limit_bytes:
            yield row.project_name, state.used_bytes / state.limit_bytes
