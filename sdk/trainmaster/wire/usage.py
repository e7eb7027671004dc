"""API models of usage, prices and budgets. Amounts of money are decimal texts in the platform's currency."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field

from trainmaster.wire.base import WireModel, WireRequest

# A price may be far below a cent: memory costs fractions of one.
PricePerHour = Annotated[Decimal, Field(ge=0, le=1_000_000, max_digits=13, decimal_places=6, allow_inf_nan=False)]
BudgetAmount = Annotated[Decimal, Field(ge=0, le=1_000_000_000, max_digits=12, decimal_places=2, allow_inf_nan=False)]
Interval = Literal["day", "month"]
BudgetAction = Literal["warn", "refuse", "lower_priority"]


class UsageTotal(WireModel):
    """Resources that were held, in GPU-, core- and GiB-hours, and their cost. ``jobs``: jobs that held some.

    ``lost_gpu_hours`` and ``lost_cost`` are parts of the others: work between the last checkpoint and the end of
    attempts that failed or were preempted. So are ``idle_gpu_hours`` and ``idle_cost``, of GPUs that were held and not
    used, as far as their utilisation was recorded.
    """

    jobs: int
    gpu_hours: float
    cpu_hours: float
    memory_gib_hours: float
    cost: Decimal
    lost_gpu_hours: float
    lost_cost: Decimal
    idle_gpu_hours: float = 0.0
    idle_cost: Decimal = Decimal(0)


class UsageGroup(UsageTotal):
    """``key``: name of the project, user, job, study, GPU model or node, or the label's value; empty: has none."""

    key: str
    id: str | None = Field(default=None, description="Of a job or a study.")


class PeriodValue(WireModel):
    key: str
    gpu_hours: float
    cpu_hours: float
    cost: Decimal


class UsagePeriod(WireModel):
    """A day or a month (UTC), with a value for each group that held resources. ``end``: not part of it."""

    start: datetime
    end: datetime
    values: list[PeriodValue]


class UsageReport(WireModel):
    """Usage from ``since`` to ``until``. ``groups``: the most expensive first; ``others``: the groups beyond them."""

    since: datetime
    until: datetime
    currency: str
    group_by: str
    groups: list[UsageGroup]
    others: UsageTotal | None = None
    total: UsageTotal
    periods: list[UsagePeriod] = Field(default_factory=list)


class JobUsage(UsageTotal):
    """Usage of one job until now."""

    currency: str


class PriceView(WireModel):
    """Price of a GPU, core or GiB of memory for an hour. ``gpu_model``: empty for any model."""

    id: str
    resource: Literal["gpu", "cpu", "memory"]
    gpu_model: str
    node_selector: dict[str, str]
    per_hour: Decimal
    currency: str
    effective_from: datetime
    created_at: datetime


class PriceCreate(WireRequest):
    resource: Literal["gpu", "cpu", "memory"] = Field(description="Per GPU, core, or GiB of memory.")
    per_hour: PricePerHour
    gpu_model: str = Field(default="", max_length=100, description="Only GPUs of this model; empty: any.")
    node_selector: dict[str, str] = Field(
        default_factory=dict, max_length=20, description="Only nodes with these labels; the most specific price counts."
    )
    effective_from: datetime | None = Field(
        default=None, description="Usage from then on has this price; default: now."
    )


class BudgetView(WireModel):
    """What a project may spend in a calendar month (UTC), and has spent in this one. ``per_month``: `null` for none."""

    project: str
    per_month: Decimal | None
    action: BudgetAction | None
    spent: Decimal
    currency: str
    month: datetime = Field(description="Its begin.")


class BudgetSet(WireRequest):
    per_month: BudgetAmount
    action: BudgetAction = Field(
        default="warn",
        description="Once it is spent: `warn` at each submission, `refuse` new jobs and studies, or `lower_priority`: "
        "waiting jobs come behind those of all other projects.",
    )
