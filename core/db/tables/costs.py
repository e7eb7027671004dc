"""Prices, budgets, and the allocations that elastic gangs gave back."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Integer
from sqlalchemy.orm import Mapped, mapped_column

from core.db.tables.base import Base, BigId


class ReleasedAllocation(Base):
    """Resources that a replica of a live elastic gang held and gave back; its row may be placed again elsewhere.

    ``gpu_milli``: thousandths of all its GPUs. All other allocations are read from replicas and attempts: see
    :mod:`core.db.repositories.allocations`.
    """

    __tablename__ = "released_allocations"
    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    attempt_id: Mapped[str]
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    node: Mapped[str]
    gpu_model: Mapped[str | None]
    gpu_milli: Mapped[int] = mapped_column(Integer)
    cpu_milli: Mapped[int] = mapped_column(Integer)
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    start_at: Mapped[datetime]
    end_at: Mapped[datetime] = mapped_column(index=True)


class PriceRow(Base):
    """A ``core.domain.sharing.costs.Price``."""

    __tablename__ = "prices"
    id: Mapped[str] = mapped_column(primary_key=True)
    resource: Mapped[str]
    gpu_model: Mapped[str]
    node_selector: Mapped[dict[str, Any]]
    micros_per_hour: Mapped[int] = mapped_column(BigInteger)
    effective_from: Mapped[datetime]
    created_by: Mapped[str]
    created_at: Mapped[datetime]


class BudgetRow(Base):
    """What a project may spend in a calendar month (UTC).

    ``action`` beyond it: ``warn``, ``refuse`` new jobs, or ``lower_priority``: its waiting jobs come behind all others.
    ``is_spent``: for the planner; kept by the scheduler, and up to date for the last of these actions alone.
    """

    __tablename__ = "budgets"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    micros_per_month: Mapped[int] = mapped_column(BigInteger)
    action: Mapped[str]
    is_spent: Mapped[bool] = mapped_column(default=False)
    updated_by: Mapped[str]
    updated_at: Mapped[datetime]
