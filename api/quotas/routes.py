from __future__ import annotations

from trainmaster.wire.base import Page
from trainmaster.wire.quotas import QuotaUpdate, QuotaView

from api.app.unit_of_work import AppContextDep
from api.auth import PlatformAdmin, ProjectViewer, Reader
from api.http.paging import PageParams
from api.http.routing import new_router
from api.quotas import service

router = new_router("quotas")


@router.get("/quotas", operation_id="list_quotas", summary="Quotas of the caller's projects")
def list_quotas(caller: Reader, context: AppContextDep, page: PageParams) -> Page[QuotaView]:
    """In order of name, with current usage. A platform admin sees all projects."""
    with context.read() as work:
        return service.list_page(work, caller, page)


@router.get("/projects/{project}/quota", operation_id="get_quota", summary="A project's quota and usage")
def get_quota(project: ProjectViewer, context: AppContextDep) -> QuotaView:
    """Limits, guarantees and current usage of the project and of its users."""
    with context.read() as work:
        return service.view_of(work, project.load(work.session))


@router.patch("/projects/{project}/quota", operation_id="update_quota", summary="Set a project's quota")
def update_quota(project: str, body: QuotaUpdate, caller: PlatformAdmin, context: AppContextDep) -> QuotaView:
    """Amounts that are not named stay. Running jobs continue; `warnings` lists probable mistakes."""
    with context.write() as work:
        return service.change(work, caller, service.load(work, caller, project), body)
