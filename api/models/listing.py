"""The list of models of all projects: query filters, and pages by cursor."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field
from sqlalchemy import select, tuple_
from trainmaster.wire.base import Page
from trainmaster.wire.models import ModelView, Stage

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller
from api.http.cursors import make_cursor, read_cursor
from api.http.paging import PageQuery, plain
from api.models.views import model_views
from core.db.tables import Model, ModelVersion
from core.domain.model_versions import VersionState

_VALUE_LIMIT: Final = 50

Text = Annotated[str, Field(max_length=300)]


class ModelsQuery(PageQuery):
    """The filters of a list of models. A repeated filter matches any of its values."""

    project: Annotated[tuple[Text, ...], Field(max_length=_VALUE_LIMIT, description="Names of projects.")] = ()
    stage: Annotated[tuple[Stage, ...], Field(max_length=4, description="Of any of the model's versions.")] = ()
    job: Annotated[str | None, Field(max_length=100, description="With a version of this job, by its id.")] = None
    search: Annotated[str, Field(max_length=100, description="Part of the name, case-insensitive.")] = ""


def find_page(work: UnitOfWork, caller: Caller, query: ModelsQuery) -> Page[ModelView]:
    """One page of the models that the caller may see, by name.

    Raises:
        NotFound: a project of the filter is hidden from the caller, or does not exist.
        InvalidRequest: the cursor is invalid.
    """
    rows = select(Model).where(Model.deleted_at.is_(None))
    if query.project:
        named = [caller.member_of(work.session, name).project_id for name in query.project]
        rows = rows.where(Model.project_id.in_(named))
    elif not caller.is_admin:
        rows = rows.where(Model.project_id.in_(list(caller.projects)))
    versions = select(ModelVersion.model_id).where(
        ModelVersion.deleted_at.is_(None), ModelVersion.state != VersionState.DELETING.value
    )
    if query.stage:
        rows = rows.where(Model.id.in_(versions.where(ModelVersion.stage.in_(query.stage))))
    if query.job is not None:
        rows = rows.where(Model.id.in_(versions.where(ModelVersion.job_id == plain(query.job))))
    if query.search:
        rows = rows.where(Model.name.icontains(plain(query.search).strip(), autoescape=True))
    if query.cursor is not None:
        name, model_id = read_cursor(query.cursor, (str, str))
        rows = rows.where(tuple_(Model.name, Model.id) > (plain(name), plain(model_id)))
    found = work.session.scalars(rows.order_by(Model.name, Model.id).limit(query.limit + 1)).all()
    page = found[: query.limit]
    cursor = make_cursor(page[-1].name, page[-1].id) if len(found) > query.limit else None
    return Page(items=model_views(work.session, page), next_cursor=cursor)
