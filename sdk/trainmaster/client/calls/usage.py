"""Usage and its cost, prices and budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from trainmaster.client.calls.build import params, path, typed, without_content
from trainmaster.client.steps import Call
from trainmaster.wire.base import Page
from trainmaster.wire.usage import (
    BudgetAction,
    BudgetSet,
    BudgetView,
    Interval,
    JobUsage,
    PriceCreate,
    PriceView,
    UsageReport,
)


def get_usage(
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    group_by: str = "project",
    interval: Interval | None = None,
    project: str | None = None,
    user: str | None = None,
    limit: int | None = None,
) -> Call[UsageReport]:
    """Usage and cost from ``since`` (default: the begin of this month, UTC) to ``until`` (default: now).

    Args:
        group_by: ``project``, ``user``, ``job``, ``study``, ``gpu_model``, ``node``, or ``label:KEY``.
        interval: also by ``day`` or ``month``.
        limit: of groups; the rest is ``others``.
    """
    query = params(
        since=since, until=until, group_by=group_by, interval=interval, project=project, user=user, limit=limit
    )
    return typed(UsageReport, "get_usage", "GET", "/usage", query=query)


def get_usage_csv(
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    group_by: str = "project",
    project: str | None = None,
    user: str | None = None,
) -> Call[str]:
    """All groups of the same report as CSV."""
    query = params(since=since, until=until, group_by=group_by, project=project, user=user)
    call: Call[Any] = typed(UsageReport, "get_usage_csv", "GET", "/usage.csv", query=query)
    return replace(call, decode=lambda answer: answer.content.decode())


def get_job_usage(job: str) -> Call[JobUsage]:
    """Usage and cost of all attempts of the job until now."""
    return typed(JobUsage, "get_job_usage", "GET", path("/jobs/{job}/usage", job=job))


def list_prices_page(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[PriceView]]:
    """One page of the prices, the newest first."""
    return typed(Page[PriceView], "list_prices", "GET", "/prices", query=params(limit=limit, cursor=cursor))


def create_price(
    resource: str,
    per_hour: Decimal | str | float,
    *,
    gpu_model: str = "",
    node_selector: Mapping[str, str] | None = None,
    effective_from: datetime | None = None,
) -> Call[PriceView]:
    """Add the price of a ``gpu``, ``cpu`` (a core) or ``memory`` (a GiB) for an hour. Platform admins only."""
    fields: dict[str, Any] = {"resource": resource, "per_hour": str(per_hour)}
    body = PriceCreate(
        **fields, gpu_model=gpu_model, node_selector=dict(node_selector or {}), effective_from=effective_from
    )
    return typed(PriceView, "create_price", "POST", "/prices", body=body)


def delete_price(price: str) -> Call[None]:
    """Delete a price as if it had never been; to end one, add another. Platform admins only."""
    return without_content("delete_price", "DELETE", path("/prices/{price}", price=price))


def list_budgets_page(*, limit: int | None = None, cursor: str | None = None) -> Call[Page[BudgetView]]:
    """One page of the budgets of the caller's projects, by name."""
    return typed(Page[BudgetView], "list_budgets", "GET", "/budgets", query=params(limit=limit, cursor=cursor))


def get_budget(project: str) -> Call[BudgetView]:
    """The project's budget, and what it has spent this month."""
    return typed(BudgetView, "get_budget", "GET", path("/projects/{project}/budget", project=project))


def set_budget(project: str, per_month: Decimal | str | float, *, action: BudgetAction = "warn") -> Call[BudgetView]:
    """Set what the project may spend in a calendar month; beyond it, ``warn`` or ``refuse``. Platform admins only."""
    body = BudgetSet(per_month=Decimal(str(per_month)), action=action)
    return typed(BudgetView, "set_budget", "PUT", path("/projects/{project}/budget", project=project), body=body)


def delete_budget(project: str) -> Call[None]:
    return without_content("delete_budget", "DELETE", path("/projects/{project}/budget", project=project))
