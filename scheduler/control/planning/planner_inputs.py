"""Inputs of the planner besides jobs and nodes: policy, projects with their quotas and usage, bookings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from sqlalchemy import Text, cast, func, select
from sqlalchemy.orm import Session

from core.db.repositories import planning
from core.db.repositories.budgets import LOWER_PRIORITY
from core.db.repositories.planning import UsageKey
from core.db.tables import BookingRow, BudgetRow, PolicyRow, Project, User
from core.domain.errors import InvalidRequest
from core.domain.ids import NodeId
from core.domain.sharing.policy import Policy
from core.domain.sharing.quota import QuotaSettings, parse_quota
from core.domain.sharing.usage import DecayedUsage
from scheduler.planning.model import Account, Booking, Snapshot
from scheduler.planning.queue.shares import Shares

log = structlog.get_logger(__name__)

# Changes of a share below this are not written: nodes that come and go change all shares a little.
_LEAST_CHANGE: Final = 1e-6
# Minimal interval between writes of a share: a write for each of hundreds of users in each of many ticks a second is
# too much.
_APART: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """``accounts`` of projects; ``project_ids`` and ``user_ids`` by name."""

    policy: Policy
    accounts: tuple[Account, ...]
    bookings: tuple[Booking, ...]
    usage: Mapping[UsageKey, DecayedUsage]
    project_ids: Mapping[str, str]
    user_ids: Mapping[str, str]

    def next_change(self, now: datetime) -> datetime | None:
        """When the next booking begins or ends."""
        times = [at for booking in self.bookings for at in (booking.begins_at, booking.ends_at) if at > now]
        return min(times, default=None)


def settings_fingerprint(session: Session) -> tuple[Any, ...]:
    """Changes whenever an administrator has changed any of the settings."""
    policy = session.execute(select(func.max(PolicyRow.generation))).scalar_one()
    projects = session.execute(
        select(Project.id, Project.weight, cast(Project.quota, Text))
        .where(Project.deleted_at.is_(None))
        .order_by(Project.id)
    ).all()
    bookings = session.execute(
        select(BookingRow.id, BookingRow.begins_at, BookingRow.ends_at, cast(BookingRow.nodes, Text)).order_by(
            BookingRow.id
        )
    ).all()
    return policy, tuple(map(tuple, projects)), tuple(map(tuple, bookings)), over_budget(session)


def over_budget(session: Session) -> frozenset[str]:
    """The ids of the projects whose spent budget lowers the priority of their jobs."""
    query = select(BudgetRow.project_id).where(BudgetRow.action == LOWER_PRIORITY, BudgetRow.is_spent)
    return frozenset(session.scalars(query))


def load_settings(session: Session, now: datetime) -> PlannerSettings:
    """All settings as of ``now``. A setting that this version cannot read is logged, and counts as absent."""
    policy = _policy(session)
    # A deleted project has no jobs any more, and its usage must not affect the others.
    projects = session.execute(
        select(Project.id, Project.name, Project.weight, Project.quota).where(Project.deleted_at.is_(None))
    ).all()
    names = {row.id: row.name for row in projects}
    usages = planning.read_usage(session)
    found = session.execute(select(User.id, User.name).where(User.id.in_({user for _, user in usages if user})))
    users = {row.id: row.name for row in found}
    past: dict[str, dict[str, float]] = {}
    for (project_id, user_id), usage in usages.items():
        if user_id and user_id not in users:
            continue  # of a user who no longer exists: included in the project's own
        value = usage.value_at(now, policy.usage_half_life_s)
        past.setdefault(project_id, {})[users[user_id] if user_id else ""] = value
    accounts = []
    over_budget_ids = over_budget(session)
    for row in projects:
        settings = _quota(row.name, row.quota)
        of_users = past.get(row.id, {})
        accounts.append(
            Account(
                row.name,
                row.weight if row.weight > 0 else 1.0,
                settings.quota,
                of_users.get("", 0.0),
                {user: value for user, value in of_users.items() if user},
                settings.user_weights,
                is_over_budget=row.id in over_budget_ids,
            )
        )
    bookings = tuple(
        Booking(
            row.id, row.name, names.get(row.project_id, ""), frozenset(map(NodeId, row.nodes)), row.begins_at,
            row.ends_at,
        )
        for row in planning.bookings(session, ending_after=now)
    )  # fmt: skip
    ids = {row.name: row.id for row in projects}
    return PlannerSettings(
        policy, tuple(accounts), bookings, usages, ids, {name: user_id for user_id, name in users.items()}
    )


def changed_usage(
    settings: PlannerSettings, snapshot: Snapshot, user_ids: Mapping[str, str]
) -> tuple[dict[UsageKey, DecayedUsage], datetime | None]:
    """The shares to write, as they differ from the written ones; and when to check again those that were written too
    recently. A share is a sample then: what comes and goes within seconds counts by chance.

    Args:
        user_ids: of the users of all running jobs, by name.
    """
    shares = Shares(snapshot)
    now: dict[UsageKey, float] = {}
    for project, amounts in shares.occupied_by_project.items():
        if project in settings.project_ids:
            now[settings.project_ids[project], ""] = shares.dominant_share(amounts)[0]
    for (project, user), amounts in shares.occupied_by_user.items():
        if project in settings.project_ids and user in user_ids:
            now[settings.project_ids[project], user_ids[user]] = shares.dominant_share(amounts)[0]
    news: dict[UsageKey, DecayedUsage] = {}
    dues: list[datetime] = []
    half_life_s = settings.policy.usage_half_life_s
    for key in sorted({*now, *settings.usage}):
        share = now.get(key, 0.0)
        before = settings.usage.get(key)
        if before is None:
            news[key] = DecayedUsage(0.0, share, snapshot.now)
        elif abs(share - before.share) > _LEAST_CHANGE:
            if before.at + _APART > snapshot.now:
                dues.append(before.at + _APART)
            else:
                news[key] = before.change(share, snapshot.now, half_life_s)
        elif not share and before.change(0.0, snapshot.now, half_life_s).is_zero:
            news[key] = before.change(share, snapshot.now, half_life_s)
    return news, min(dues, default=None)


def _policy(session: Session) -> Policy:
    stored = planning.read_policy(session)
    if stored.wrong:
        log.warning("policy.unreadable", why=" ".join(stored.wrong.values()))
    return stored.policy


def _quota(project: str, data: Mapping[str, Any]) -> QuotaSettings:
    try:
        return parse_quota(data or {})
    except InvalidRequest as wrong:
        log.warning("quota.unreadable", project=project, why=wrong.sentence)
        return QuotaSettings()
