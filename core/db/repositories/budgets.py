"""What projects have spent in a calendar month, and whose budget that exceeds."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.repositories.allocations import read_allocations, read_prices
from core.db.tables import BudgetRow, Job
from core.domain.sharing.costs import ResourceTotals, allocation_totals

LOWER_PRIORITY: Final = "lower_priority"  # the action of a budget


def month_of(now: datetime) -> datetime:
    """The begin of ``now``'s calendar month."""
    return now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def spent_micros(session: Session, project_id: str, now: datetime) -> int:
    """The cost of the project's usage in this month until ``now``."""
    return spent_by_project(session, [project_id], now).get(project_id, 0)


def spent_by_project(session: Session, project_ids: list[str], now: datetime) -> dict[str, int]:
    """The same of several projects, in micros by project; without those that used nothing."""
    prices, cuts = read_prices(session), (month_of(now), now)
    sums: dict[str, ResourceTotals] = {}
    if cuts[0] < now and project_ids:
        of_these = Job.project_id.in_(project_ids)
        for owner, allocation in read_allocations(session, *cuts, now, condition=of_these):
            for _, totals in allocation_totals(allocation, prices, cuts):
                sums.setdefault(owner.project_id, ResourceTotals()).add(totals)
    return {project_id: totals.cost_micros for project_id, totals in sums.items()}


def update_spent(session: Session, now: datetime) -> list[BudgetRow]:
    """Bring ``is_spent`` up to date in the budgets that lower the priority; returns those in which it changed."""
    budgets = session.scalars(select(BudgetRow).where(BudgetRow.action == LOWER_PRIORITY)).all()
    spent = spent_by_project(session, [budget.project_id for budget in budgets], now)
    changed = []
    for budget in budgets:
        is_spent = spent.get(budget.project_id, 0) >= budget.micros_per_month
        if is_spent is not budget.is_spent:
            budget.is_spent = is_spent
            changed.append(budget)
    return changed
