"""The audit log: its list, the newest first, and its export as JSON lines. Nothing changes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import orjson
from fastapi import Query, Response
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session
from trainmaster.wire.audit import AuditEntryView, AuditOutcome
from trainmaster.wire.base import Page

from api.app.audit import note_object
from api.app.unit_of_work import AppContext, AppContextDep
from api.auth import Caller, Reader
from api.http.paging import PageQuery, make_cursor, read_cursor
from api.http.routing import new_router
from core.db.audit import AuditFilter, newest_entries, oldest_entries
from core.domain.errors import Forbidden

router = new_router("audit")

_EXPORT_PAGE: Final = 1_000

_Text = Annotated[str | None, Field(max_length=500)]


class AuditFilters(BaseModel):
    """Which entries. An unknown parameter is refused, so that a misspelt filter is noticed."""

    model_config = ConfigDict(extra="forbid")

    user: Annotated[_Text, Field(description="Name of the user, or `attempt:ID`.")] = None
    token: Annotated[_Text, Field(description="ID of the token.")] = None
    action: Annotated[_Text, Field(description="Operation, such as `cancel_job`.")] = None
    object: Annotated[_Text, Field(description="ID or name of the object.")] = None
    project: Annotated[_Text, Field(description="Name of the project.")] = None
    outcome: AuditOutcome | None = None
    since: AwareDatetime | None = None
    until: Annotated[AwareDatetime | None, Field(description="Only entries before this time.")] = None


class AuditQuery(AuditFilters, PageQuery):
    """Filters and page of the list."""


class AuditExportQuery(AuditFilters):
    """Filters and part of the export."""

    after: Annotated[int, Field(ge=0, le=2**63 - 1, description="Only entries with larger positions.")] = 0
    limit: Annotated[
        int | None,
        Field(ge=1, le=10_000, description="At most so many chained entries; where fewer are left, all others follow."),
    ] = None


@router.get("/audit", operation_id="list_audit_entries", summary="Entries of the audit log, the newest first")
def list_audit_entries(
    caller: Reader, context: AppContextDep, query: Annotated[AuditQuery, Query()]
) -> Page[AuditEntryView]:
    """Platform admins see all entries, project admins those of their projects."""
    before = None if query.cursor is None else min(read_cursor(query.cursor, (int,))[0], 2**63 - 1)
    with context.read() as work:
        wanted = _filter_of(work.session, caller, query)
        found = newest_entries(work.session, wanted, before=before, limit=query.limit + 1)
    items = [AuditEntryView.model_validate(entry) for entry in found[: query.limit]]
    return Page(items=items, next_cursor=make_cursor(items[-1].id) if len(found) > query.limit else None)


@router.get(
    "/audit/export",
    operation_id="export_audit_log",
    summary="All entries as JSON lines, in the order of the hash chain",
    response_class=Response,
    responses={200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}},
)
def export_audit_log(caller: Reader, context: AppContextDep, query: Annotated[AuditExportQuery, Query()]) -> Response:
    """Only an export without filters can be verified."""
    note_object("audit_log", query.project or "all")
    with context.read() as work:
        wanted = _filter_of(work.session, caller, query)
    return StreamingResponse(_lines(context, wanted, query), media_type="application/x-ndjson")


def _lines(context: AppContext, wanted: AuditFilter, query: AuditExportQuery) -> Iterator[bytes]:
    left = query.limit
    for is_chained, begin in ((True, query.after), (False, 0)):
        last = begin
        while True:
            limit = _EXPORT_PAGE if left is None or not is_chained else min(_EXPORT_PAGE, left)
            with context.read() as work:  # of each page: a slow client holds no connection
                page = oldest_entries(work.session, wanted, after=last, is_chained=is_chained, limit=limit)
            yield b"".join(orjson.dumps(entry) + b"\n" for entry in page)
            if len(page) < limit:
                break
            last = page[-1]["position" if is_chained else "id"]
            if left is not None and is_chained:
                left -= len(page)
                if not left:
                    return


def _filter_of(session: Session, caller: Caller, query: AuditFilters) -> AuditFilter:
    """Raises ``Forbidden`` if the caller administrates neither the platform nor a project."""
    ids = None if caller.is_admin else [each.project_id for each in caller.projects.values() if each.role == "admin"]
    if query.project is not None:
        ids = [caller.member_of(session, query.project, "admin").project_id]
    if ids is not None and not ids:
        raise Forbidden("The audit log is for admins of the platform or of a project.")
    return AuditFilter(
        user=query.user,
        token=query.token,
        action=query.action,
        object=query.object,
        outcome=query.outcome,
        since=query.since,
        until=query.until,
        project_ids=ids,
    )
