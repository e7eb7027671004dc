"""Lists of studies: query filters, and pages by cursor."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query
from pydantic import Field
from sqlalchemy import or_, select, tuple_
from trainmaster.wire.base import Page
from trainmaster.wire.studies import StudyView

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller
from api.http.cursors import make_cursor
from api.http.paging import PageQuery, read_position
from api.studies.views import study_views
from core.db.tables import Study, User
from core.domain.studies.states import StudyState

_VALUE_LIMIT: Final = 50

Text = Annotated[str, Field(max_length=300)]


class StudyQuery(PageQuery):
    """The filters of a list of studies. A repeated filter matches any of its values."""

    project: Annotated[tuple[Text, ...], Field(max_length=_VALUE_LIMIT, description="Names of projects.")] = ()
    state: Annotated[tuple[StudyState, ...], Field(max_length=_VALUE_LIMIT)] = ()
    user: Annotated[tuple[Text, ...], Field(max_length=_VALUE_LIMIT)] = ()
    search: Annotated[str, Field(max_length=100, description="Part of the name, or an id.")] = ""


StudyQueryParams = Annotated[StudyQuery, Query()]


def list_page(work: UnitOfWork, caller: Caller, query: StudyQuery) -> Page[StudyView]:
    """One page of the studies that the caller may see, newest first.

    Raises:
        NotFound: a project of the filter is hidden from the caller, or does not exist.
        InvalidRequest: the cursor is invalid.
    """
    rows = select(Study).where(Study.deleted_at.is_(None))
    if query.project:
        named = [caller.member_of(work.session, name).project_id for name in query.project]
        rows = rows.where(Study.project_id.in_(named))
    elif not caller.is_admin:
        rows = rows.where(Study.project_id.in_(list(caller.projects)))
    if query.state:
        rows = rows.where(Study.state.in_([state.value for state in query.state]))
    if query.user:
        rows = rows.where(Study.user_id.in_(select(User.id).where(User.name.in_(query.user))))
    wanted = query.search.replace("\0", "").strip()
    if wanted:
        rows = rows.where(or_(Study.name.icontains(wanted, autoescape=True), Study.id == wanted))
    if query.cursor is not None:
        rows = rows.where(tuple_(Study.created_at, Study.id) < read_position(query.cursor))
    found = work.session.scalars(rows.order_by(Study.created_at.desc(), Study.id.desc()).limit(query.limit + 1)).all()
    page = found[: query.limit]
    cursor = make_cursor(page[-1].created_at.isoformat(), page[-1].id) if len(found) > query.limit else None
    return Page(items=study_views(work.session, page), next_cursor=cursor)
