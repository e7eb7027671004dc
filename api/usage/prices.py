"""The price list, and the monthly budgets of projects."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, cast

from sqlalchemy import select
from trainmaster.wire.base import Page
from trainmaster.wire.usage import BudgetAction, BudgetSet, BudgetView, PriceCreate, PriceView

from api.app.unit_of_work import AppContext, AppContextDep, UnitOfWork
from api.auth import Caller, PlatformAdmin, ProjectAccess, ProjectViewer, Reader
from api.http.paging import PageParams, newest_rows, rows_by_name
from api.http.routing import new_router
from core.db.repositories.budgets import LOWER_PRIORITY, month_of, spent_by_project, update_spent
from core.db.tables import BudgetRow, PriceRow, Project
from core.domain.errors import Conflict, InvalidRequest, NotFound
from core.domain.sharing.costs import amount_of, micros_of
from core.ids import new_id
from core.wakeups import TOPIC_TICK

router = new_router("usage")

_PRICES: Final = 1_000


@router.get("/prices", operation_id="list_prices", summary="Prices")
def list_prices(_caller: Reader, context: AppContextDep, page: PageParams) -> Page[PriceView]:
    """The newest first. What has no price is free."""
    with context.read() as work:
        rows, cursor = newest_rows(work.session, select(PriceRow), PriceRow, page)
        return Page(items=[_price_view(row, context) for (row,) in rows], next_cursor=cursor)


@router.post("/prices", operation_id="create_price", summary="Add a price", status_code=201)
def create_price(body: PriceCreate, caller: PlatformAdmin, context: AppContextDep) -> PriceView:
    """It counts for usage from `effective_from` on; a later one for the same resource, model and labels ends it."""
    if body.gpu_model and body.resource != "gpu":
        raise InvalidRequest("gpu_model: only GPUs have a model; leave it out.", field="gpu_model")
    with context.write() as work:
        if len(work.session.scalars(select(PriceRow.id).limit(_PRICES)).all()) >= _PRICES:
            raise Conflict(f"There are {_PRICES} prices, the most there can be; delete those that are not needed.")
        row = PriceRow(
            id=new_id("price"),
            resource=body.resource,
            gpu_model=body.gpu_model,
            node_selector=dict(body.node_selector),
            micros_per_hour=micros_of(body.per_hour),
            effective_from=work.now if body.effective_from is None else _utc(body.effective_from),
            created_by=caller.user_id,
            created_at=work.now,
        )
        work.session.add(row)
        view = _price_view(row, context)
        work.record_event("price.created", caller.actor, data=view.model_dump(mode="json"))
    context.budgets.clear()
    return view


@router.delete("/prices/{price}", operation_id="delete_price", summary="Delete a price", status_code=204)
def delete_price(price: str, caller: PlatformAdmin, context: AppContextDep) -> None:
    """Usage that had this price gets the next one that applies, also in the past. To end a price, add another one."""
    with context.write() as work:
        row = work.session.get(PriceRow, price)
        if row is None:
            raise NotFound(f"There is no price {price!r}; `trainmaster price list` shows their ids.")
        work.record_event("price.deleted", caller.actor, data=_price_view(row, context).model_dump(mode="json"))
        work.session.delete(row)
    context.budgets.clear()


@router.get("/budgets", operation_id="list_budgets", summary="Budgets of the caller's projects")
def list_budgets(caller: Reader, context: AppContextDep, page: PageParams) -> Page[BudgetView]:
    """In order of the projects' names, with what was spent this month. A platform admin sees all projects."""
    query = select(Project).where(Project.deleted_at.is_(None))
    if not caller.is_admin:
        query = query.where(Project.id.in_(list(caller.projects)))
    with context.read() as work:
        rows, cursor = rows_by_name(work.session, query, Project.name, page)
        return Page(items=_budget_views(work, context, [project for project, _ in rows]), next_cursor=cursor)


@router.get("/projects/{project}/budget", operation_id="get_budget", summary="A project's budget")
def get_budget(project: ProjectViewer, context: AppContextDep) -> BudgetView:
    """With what the project spent this month."""
    with context.read() as work:
        return _budget_views(work, context, [project.load(work.session)])[0]


@router.put("/projects/{project}/budget", operation_id="set_budget", summary="Set a project's budget")
def set_budget(project: str, body: BudgetSet, caller: PlatformAdmin, context: AppContextDep) -> BudgetView:
    """Per calendar month (UTC). Running jobs go on when it is spent."""
    with context.write() as work:
        row = _load(work, caller, project)
        budget = work.session.get(BudgetRow, row.id, with_for_update=True)
        if budget is None:
            budget = BudgetRow(project_id=row.id)
            work.session.add(budget)
        budget.micros_per_month, budget.action = micros_of(body.per_month), body.action
        budget.updated_by, budget.updated_at = caller.user_id, work.now
        work.record_event("budget.set", caller.actor, project_id=row.id, data=body.model_dump(mode="json"))
        budget.is_spent = budget.is_spent and body.action == LOWER_PRIORITY
        work.session.flush()
        update_spent(work.session, work.now)
        view = _budget_views(work, context, [row])[0]
        work.notify(TOPIC_TICK)
    context.budgets.clear()
    return view


@router.delete("/projects/{project}/budget", operation_id="delete_budget", summary="Remove a budget", status_code=204)
def delete_budget(project: str, caller: PlatformAdmin, context: AppContextDep) -> None:
    with context.write() as work:
        row = _load(work, caller, project)
        budget = work.session.get(BudgetRow, row.id)
        if budget is None:
            raise NotFound(f"Project {row.name} has no budget.")
        work.session.delete(budget)
        work.record_event("budget.deleted", caller.actor, project_id=row.id)
    context.budgets.clear()


def _load(work: UnitOfWork, caller: Caller, project: str) -> Project:
    return ProjectAccess(caller, project, "viewer").load(work.session)


def _budget_views(work: UnitOfWork, context: AppContext, projects: list[Project]) -> list[BudgetView]:
    ids = [project.id for project in projects]
    budgets = {
        row.project_id: row for row in work.session.scalars(select(BudgetRow).where(BudgetRow.project_id.in_(ids)))
    }
    spent = spent_by_project(work.session, ids, work.now)
    return [
        BudgetView(
            project=project.name,
            per_month=amount_of(budgets[project.id].micros_per_month) if project.id in budgets else None,
            action=cast("BudgetAction", budgets[project.id].action) if project.id in budgets else None,
            spent=amount_of(spent.get(project.id, 0)),
            currency=context.settings.currency,
            month=month_of(work.now),
        )
        for project in projects
    ]


def _price_view(row: PriceRow, context: AppContext) -> PriceView:
    return PriceView.model_validate(
        {
            "id": row.id,
            "resource": row.resource,
            "gpu_model": row.gpu_model,
            "node_selector": row.node_selector,
            "per_hour": amount_of(row.micros_per_hour),
            "currency": context.settings.currency,
            "effective_from": row.effective_from,
            "created_at": row.created_at,
        }
    )


def _utc(at: datetime) -> datetime:
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError as error:
        raise InvalidRequest("effective_from: the time is out of range.", field="effective_from") from error
