from __future__ import annotations

from trainmaster.wire.policy import PolicyUpdate, PolicyView

from api.app.unit_of_work import AppContextDep
from api.auth import PlatformAdmin, Reader
from api.http.routing import new_router
from api.policy import service

router = new_router("policy", "/policy")


@router.get("", operation_id="get_policy", summary="The planner's settings")
def get_policy(_caller: Reader, context: AppContextDep) -> PolicyView:
    """Queue order, fairness, preemption, quarantine and defragmentation."""
    with context.read() as work:
        return service.get(work)


@router.patch("", operation_id="update_policy", summary="Change the planner's settings")
def update_policy(body: PolicyUpdate, caller: PlatformAdmin, context: AppContextDep) -> PolicyView:
    """Settings that are not named stay. Changes apply from the next tick; `warnings` lists probable mistakes."""
    with context.write() as work:
        return service.change(work, caller, body)
