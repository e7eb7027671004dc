"""Allocations of replicas on nodes; their sums are the usage in ``NodeView``."""

from __future__ import annotations

from sqlalchemy import select
from trainmaster.wire.admin import HolderView
from trainmaster.wire.base import Page

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller
from api.http.paging import PageQuery, rows_by_name
from core.db.repositories.nodes import is_holding
from core.db.rows import AnyRow
from core.db.tables import Job, Project, Replica


def list_page(work: UnitOfWork, caller: Caller, page: PageQuery) -> Page[HolderView]:
    """In order of the replicas' ids. Replicas of projects hidden from the caller have no names."""
    query = (
        select(
            Replica.node, Replica.gpus, Replica.gpu_model, Replica.gpu_milli, Replica.cpu_milli, Replica.memory_bytes,
            Replica.role, Replica.index.label("replica_index"), Replica.state, Job.id.label("job_id"),
            Job.name.label("job"), Job.project_id, Project.name.label("project"),
        )
        .join(Job, Job.id == Replica.job_id)
        .join(Project, Project.id == Job.project_id)
        .where(is_holding())
    )  # fmt: skip
    rows, cursor = rows_by_name(work.session, query, Replica.id, page)
    return Page(items=[_view(row, caller) for row in rows], next_cursor=cursor)


def _view(row: AnyRow, caller: Caller) -> HolderView:
    is_known = caller.is_admin or row.project_id in caller.projects
    return HolderView(
        node=row.node,
        gpus=[str(gpu) for gpu in row.gpus],
        gpu_model=row.gpu_model,
        gpu_part=row.gpu_milli / 1000 if row.gpu_milli else None,
        cpu_milli=row.cpu_milli,
        memory_bytes=row.memory_bytes,
        job_id=row.job_id if is_known else None,
        job=row.job if is_known else None,
        project=row.project if is_known else None,
        role=row.role if is_known else None,
        index=row.replica_index if is_known else None,
        state=row.state if is_known else None,
    )
