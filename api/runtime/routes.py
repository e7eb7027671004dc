from __future__ import annotations

from trainmaster.wire.runtime import Report, ReportAnswer

from api.auth import AttemptCaller
from api.routing import new_router
from api.runtime.service import take_report
from api.work import Platform, PlatformDep
from core.domain.ids import AttemptId

router = new_router("runtime", "/runtime")


@router.post("/report", operation_id="report", summary="A replica's heartbeats, progress, checkpoints and events")
async def report(body: Report, attempt: AttemptCaller, platform: PlatformDep) -> ReportAnswer:
    """With the attempt's token. Items with numbers that were seen already are dropped; `acked` may leave the spool."""
    return await platform.run_hot(_take, body, attempt, platform)


def _take(body: Report, attempt: AttemptId, platform: Platform) -> ReportAnswer:
    with platform.write() as work:
        return ReportAnswer(acked=take_report(work, attempt, body))
