"""Which projects have spent their budgets, as far as the planner has to know it."""

from __future__ import annotations

from typing import Final

import structlog
from sqlalchemy import func, select

from core.db.engine import unit_of_work
from core.db.repositories.budgets import LOWER_PRIORITY, update_spent
from core.db.repositories.events import append_event
from core.db.tables import BudgetRow
from core.wakeups import TOPIC_TICK
from scheduler.control import fence
from scheduler.control.context import ControlContext
from scheduler.control.journal import SCHEDULER

log = structlog.get_logger(__name__)

BUDGETS_LEASE: Final = "budgets"
_REASONS: Final = {
    True: "The budget of this month is spent: waiting jobs come behind those of all other projects.",
    False: "The project is within its budget again: its jobs have their own priorities.",
}


def check_budgets(control: ControlContext) -> int:
    """Sum what the projects have spent whose budgets lower the priority; returns how many budgets are spent since, or
    are not any more.

    Raises:
        Unavailable: the database is away.
    """
    with unit_of_work(control.sessions, read_only=True) as session:
        count = select(func.count()).select_from(BudgetRow).where(BudgetRow.action == LOWER_PRIORITY)
        if not session.execute(count).scalar_one():
            return 0
    changes = 0
    with fence.leased(control, BUDGETS_LEASE) as lease:
        if lease is None:
            return 0
        with lease.fenced() as session:
            now = control.clock()
            for budget in update_spent(session, now):
                kind = "budget.spent" if budget.is_spent else "budget.renewed"
                reason, project_id = _REASONS[budget.is_spent], budget.project_id
                append_event(session, at=now, kind=kind, actor=SCHEDULER, project_id=project_id, reason=reason)
                log.info(kind, project=project_id)
                changes += 1
    if changes:
        control.wakeup.notify(TOPIC_TICK)
    return changes
