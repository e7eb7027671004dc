from __future__ import annotations

from trainmaster.wire.base import Page
from trainmaster.wire.jobs import CheckpointView

from api.auth import JobViewer
from api.checkpoints import service
from api.paging import PageParams
from api.routing import new_router
from api.work import PlatformDep

router = new_router("checkpoints")


@router.get(
    "/jobs/{job}/checkpoints", operation_id="list_checkpoints", summary="Complete checkpoints of a job, newest first"
)
def list_checkpoints(job: JobViewer, platform: PlatformDep, page: PageParams) -> Page[CheckpointView]:
    """Those that the job told of, with their metrics, and those that lie in its output."""
    return service.list_page(platform, job, page)
