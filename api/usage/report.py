"""Sums of usage and cost by project, user, job, study, GPU model, node or label, and by day or month."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session
from trainmaster.wire.usage import Interval, PeriodValue, UsageGroup, UsagePeriod, UsageReport, UsageTotal

from core.db.repositories.allocations import AllocationOwner, read_allocations, read_prices
from core.db.repositories.budgets import month_of
from core.db.tables import JobLabel, Project, Study, User
from core.domain.errors import InvalidRequest
from core.domain.sharing.costs import Allocation, ResourceTotals, allocation_totals, amount_of

LABEL: Final = "label:"
GROUPINGS: Final = ("project", "user", "job", "study", "gpu_model", "node")
_PERIODS: Final = 1_000
# Deleting a project appends its id to its name, so that the name is free.
_DELETED: Final = "~"

Key = tuple[str, str | None]  # the name that is shown, and the id of a job or a study


@dataclass(slots=True)
class _Group:
    totals: ResourceTotals = field(default_factory=ResourceTotals)
    jobs: set[str] = field(default_factory=set)

    def add(self, job_id: str, totals: ResourceTotals) -> None:
        self.totals.add(totals)
        self.jobs.add(job_id)


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """What to report. ``condition``: on ``Job``. ``limit``: of groups; ``None``: all of them."""

    since: datetime
    until: datetime
    now: datetime
    group_by: str
    interval: Interval | None
    condition: Any
    limit: int | None


def make_report(session: Session, query: UsageQuery, currency: str) -> UsageReport:
    """Raises ``InvalidRequest``: an unknown grouping, or too many periods."""
    key_of = _key_function(session, query.group_by)
    periods = _periods(query)
    cuts = [query.since, *(end for _, end in periods)]
    prices = read_prices(session)
    groups: dict[Key, _Group] = {}
    by_period: list[dict[Key, ResourceTotals]] = [{} for _ in periods]
    total = _Group()
    found = read_allocations(session, query.since, query.until, query.now, condition=query.condition)
    for owner, allocation in found:
        key = key_of(owner, allocation)
        for number, totals in allocation_totals(allocation, prices, cuts):
            groups.setdefault(key, _Group()).add(owner.job_id, totals)
            total.add(owner.job_id, totals)
            if query.interval is not None:
                by_period[number].setdefault(key, ResourceTotals()).add(totals)
    order = sorted(groups, key=lambda key: _rank(key, groups[key].totals))
    shown = order if query.limit is None else order[: query.limit]
    beyond = _Group()
    for key in order[len(shown) :]:
        beyond.totals.add(groups[key].totals)
        beyond.jobs |= groups[key].jobs
    return UsageReport(
        since=query.since,
        until=query.until,
        currency=currency,
        group_by=query.group_by,
        groups=[UsageGroup(key=key[0], id=key[1], **_figures(groups[key])) for key in shown],
        others=total_view(beyond) if beyond.jobs else None,
        total=total_view(total),
        periods=[] if query.interval is None else [
            UsagePeriod(start=start, end=end, values=_values(sums, shown))
            for (start, end), sums in zip(periods, by_period, strict=True)
        ],
    )  # fmt: skip


def total_of(session: Session, since: datetime, now: datetime, condition: Any) -> UsageTotal:
    """The total of all jobs that meet ``condition``, from ``since`` to ``now``."""
    prices, group = read_prices(session), _Group()
    for owner, allocation in read_allocations(session, since, now, now, condition=condition):
        for _, totals in allocation_totals(allocation, prices, (since, now)):
            group.add(owner.job_id, totals)
    return total_view(group)


def total_view(group: _Group) -> UsageTotal:
    return UsageTotal(**_figures(group))


def _figures(group: _Group) -> dict[str, Any]:
    totals = group.totals
    return {
        "jobs": len(group.jobs),
        "gpu_hours": totals.gpu_hours,
        "cpu_hours": totals.cpu_hours,
        "memory_gib_hours": totals.memory_gib_hours,
        "cost": amount_of(totals.cost_micros),
        "lost_gpu_hours": totals.lost_gpu_hours,
        "lost_cost": amount_of(totals.lost_cost_micros),
        "idle_gpu_hours": totals.idle_gpu_hours,
        "idle_cost": amount_of(totals.idle_cost_micros),
    }


def _rank(key: Key, totals: ResourceTotals) -> tuple[int, int, int, str, str]:
    return -totals.cost, -totals.gpu, -totals.cpu, key[0], key[1] or ""


def _values(sums: Mapping[Key, ResourceTotals], shown: Sequence[Key]) -> list[PeriodValue]:
    """Of the shown groups; equal names, as two jobs may have, are one value."""
    merged: dict[str, ResourceTotals] = {}
    for key in shown:
        if key in sums:
            merged.setdefault(key[0], ResourceTotals()).add(sums[key])
    return [
        PeriodValue(
            key=name,
            gpu_hours=totals.gpu_hours,
            cpu_hours=totals.cpu_hours,
            cost=amount_of(totals.cost_micros),
        )
        for name, totals in merged.items()
    ]


def _periods(query: UsageQuery) -> list[tuple[datetime, datetime]]:
    if query.interval is None:
        return [(query.since, query.until)]
    found, start = list[tuple[datetime, datetime]](), query.since
    while start < query.until:
        end = min(query.until, _next(start, query.interval))
        found.append((start, end))
        if len(found) > _PERIODS:
            raise InvalidRequest(
                f"interval: from since to until are more than {_PERIODS} {query.interval}s; ask for a shorter time.",
                field="interval",
            )
        start = end
    return found


def _next(at: datetime, interval: Interval) -> datetime:
    """The begin of the next day or month."""
    if interval == "day":
        return at.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return month_of(month_of(at) + timedelta(days=32))


def _key_function(session: Session, group_by: str) -> Callable[[AllocationOwner, Allocation], Key]:
    if group_by.startswith(LABEL):
        values = _label_values(session, group_by.removeprefix(LABEL))
        return lambda owner, _: (values.get(owner.job_id, ""), None)
    if group_by == "project":
        projects = {id_: _project_name(name) for id_, name in _names(session, Project)}
        return lambda owner, _: (projects.get(owner.project_id, owner.project_id), None)
    if group_by == "user":
        users = dict(_names(session, User))
        return lambda owner, _: (users.get(owner.user_id, owner.user_id), None)
    if group_by == "study":
        studies = dict(_names(session, Study))
        return lambda owner, _: (studies.get(owner.study_id or "", ""), owner.study_id)
    by_allocation: dict[str, Callable[[AllocationOwner, Allocation], Key]] = {
        "job": lambda owner, _: (owner.job, owner.job_id),
        "gpu_model": lambda _, allocation: (allocation.gpu_model or "", None),
        "node": lambda _, allocation: (allocation.node, None),
    }
    if group_by not in by_allocation:
        raise InvalidRequest(
            f"group_by: {group_by!r} is none of {', '.join(GROUPINGS)} and {LABEL}KEY.", field="group_by"
        )
    return by_allocation[group_by]


def _names(session: Session, table: type[Project | User | Study]) -> Iterator[tuple[str, str]]:
    yield from session.execute(select(table.id, table.name)).all()


def _project_name(name: str) -> str:
    return f"{name.partition(_DELETED)[0]} (deleted)" if _DELETED in name else name


def _label_values(session: Session, key: str) -> dict[str, str]:
    rows = session.execute(select(JobLabel.job_id, JobLabel.value).where(JobLabel.key == key))
    return dict(rows.all())
