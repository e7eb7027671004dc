from __future__ import annotations

from typing import Annotated

from fastapi import Query
from trainmaster.wire.base import Page
from trainmaster.wire.queue import QueuePage, RunningJobView, SharesView

from api.app.unit_of_work import AppContextDep
from api.auth import Reader
from api.http.paging import PageParams
from api.http.routing import new_router
from api.queue import service, shares
from api.queue.service import QueueQuery

router = new_router("queue")


@router.get("/queue", operation_id="list_queue", summary="The queued jobs, in the planner's order")
def list_queue(caller: Reader, context: AppContextDep, query: Annotated[QueueQuery, Query()]) -> QueuePage:
    """The next job first, with wait reasons and expected starts. Jobs of projects that you may not see are not
    named.
    """
    with context.read() as work:
        return service.waiting(work, caller, query)


@router.get("/queue/running", operation_id="list_running", summary="The running jobs, with their expected ends")
def list_running(caller: Reader, context: AppContextDep, page: PageParams) -> Page[RunningJobView]:
    """In order of their ids. Jobs of projects that you may not see are not named."""
    with context.read() as work:
        return service.running(work, caller, page)


@router.get("/shares", operation_id="get_shares", summary="The projects' shares of the cluster")
def get_shares(caller: Reader, context: AppContextDep) -> SharesView:
    """For each project: usage, demand, fair share by weight, and recent usage. Projects that you may not see are one
    item.
    """
    with context.read() as work:
        return shares.view(work, caller)
