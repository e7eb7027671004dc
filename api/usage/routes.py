"""Usage and cost of jobs: reports, CSV, and the usage of one job."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import Depends, Query, Response
from sqlalchemy import ColumnElement, and_, select, true
from trainmaster.wire.usage import Interval, JobUsage, UsageReport, UsageTotal

from api.app.unit_of_work import AppContext, AppContextDep, UnitOfWork
from api.auth import Caller, JobViewer, Reader
from api.http.routing import new_router
from api.usage.report import UsageQuery, make_report, total_of
from core.db.repositories.budgets import month_of
from core.db.tables import Job, User
from core.domain.errors import InvalidRequest, NotFound

router = new_router("usage")

_COLUMNS: Final = tuple(UsageTotal.model_fields)
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_GROUPS: Final = 100


@dataclass(frozen=True, slots=True)
class UsageParams:
    """Query parameters of a report."""

    since: Annotated[
        datetime | None, Query(description="Default: the begin of this month. Times without a zone are UTC.")
    ] = None
    until: Annotated[datetime | None, Query(description="Not part of it; default: now.")] = None
    group_by: Annotated[
        str,
        Query(
            max_length=200, description="`project`, `user`, `job`, `study`, `gpu_model`, `node`, or `label:KEY`."
        ),
    ] = "project"  # fmt: skip
    interval: Annotated[Interval | None, Query(description="Also by day or month.")] = None
    project: Annotated[str | None, Query(max_length=200, description="Only jobs of this project.")] = None
    user: Annotated[str | None, Query(max_length=200, description="Only jobs of this user.")] = None


UsageParamsDep = Annotated[UsageParams, Depends()]


@router.get("/usage", operation_id="get_usage", summary="Usage and cost")
def get_usage(
    caller: Reader,
    context: AppContextDep,
    params: UsageParamsDep,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Of groups.")] = _GROUPS,
) -> UsageReport:
    """What jobs held, from the placing of the gang to its end, to the second, and what it cost. Of the projects of the
    caller; a platform admin sees all.
    """
    return _report(context, caller, params, limit)


@router.get(
    "/usage.csv",
    operation_id="get_usage_csv",
    summary="Usage and cost as CSV",
    response_class=Response,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
def get_usage_csv(caller: Reader, context: AppContextDep, params: UsageParamsDep) -> Response:
    """The groups of the same report, all of them, a line each."""
    report = _report(context, caller, params, None)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["since", "until", report.group_by, "id", "currency", *_COLUMNS])
    since, until = report.since.isoformat(), report.until.isoformat()
    for group in report.groups:
        figures = [getattr(group, column) for column in _COLUMNS]
        writer.writerow([since, until, _cell(group.key), group.id or "", report.currency, *figures])
    name = f"usage-{report.since:%Y%m%d}-{report.until:%Y%m%d}.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text.getvalue(), media_type="text/csv", headers=headers)


@router.get("/jobs/{job}/usage", operation_id="get_job_usage", summary="Usage and cost of a job")
def get_job_usage(job: JobViewer, context: AppContextDep) -> JobUsage:
    """Of all its attempts until now."""
    with context.read() as work:
        row = job.load(work.session)
        total = total_of(work.session, row.created_at, work.now, Job.id == row.id)
        return JobUsage(currency=context.settings.currency, **total.model_dump())


def _report(context: AppContext, caller: Caller, params: UsageParams, limit: int | None) -> UsageReport:
    with context.read() as work:
        since = month_of(work.now) if params.since is None else _utc(params.since, "since")
        until = work.now if params.until is None else min(work.now, _utc(params.until, "until"))
        if since >= until:
            raise InvalidRequest(f"since: {since.isoformat()} is not before until, {until.isoformat()}.", field="since")
        query = UsageQuery(
            since, until, work.now, params.group_by, params.interval, _visible(work, caller, params), limit
        )
        return make_report(work.session, query, context.settings.currency)


def _visible(work: UnitOfWork, caller: Caller, params: UsageParams) -> object:
    """A condition on the jobs that the report is of."""
    wanted: list[ColumnElement[bool]] = [true() if caller.is_admin else Job.project_id.in_(list(caller.projects))]
    if params.project is not None:
        wanted.append(Job.project_id == caller.member_of(work.session, params.project, "viewer").project_id)
    if params.user is not None:
        user_id = work.session.scalar(select(User.id).where(User.name == params.user))
        if user_id is None:
            raise NotFound(f"There is no user {params.user!r}; `trainmaster user list` shows them.", field="user")
        wanted.append(Job.user_id == user_id)
    return and_(*wanted)


def _utc(at: datetime, field: str) -> datetime:
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError as error:
        raise InvalidRequest(f"{field}: the time is out of range.", field=field) from error


def _cell(text: str) -> str:
    """Spreadsheets would compute what begins like a formula (https://owasp.org/www-community/attacks/CSV_Injection)."""
    return f"'{text}" if text.startswith(_FORMULA) else text
