"""Feasibility check at submission: whether any node could ever run the job, before the user waits in vain."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import anyio
from anyio import from_thread
from trainmaster.wire.jobs import WaitReasonView

from api.app.unit_of_work import AppContext
from api.auth import Caller
from api.forecasts.service import ask_of, forecast
from api.jobs.service import Submission
from core.db.leases import TICK_DONE, marked_at
from core.db.repositories.questions import ForecastQuestion
from core.domain.errors import TrainmasterError

_TIMEOUT_S: Final = 3.0
# A scheduler that planned nothing for so long counts as away; the check is skipped.
_SCHEDULER_AWAY_AFTER: Final = timedelta(seconds=30)


def why_never(context: AppContext, caller: Caller, submission: Submission) -> WaitReasonView | None:
    """The planner's reason why no existing node could ever run the job; ``None``: a node could, or it is unknown.

    Skipped for a job with a ``max_wait``, and while no scheduler answers. Call it in a thread of the server, without an
    open transaction.
    """
    if submission.spec.max_wait is not None:
        return None
    if not any(role.resources.model_dump(exclude_defaults=True) for role in submission.spec.roles.values()) and not (
        submission.spec.node_selector
    ):
        return None  # it fits on any node
    with context.read() as work:
        planned = marked_at(work.session, TICK_DONE)
        if planned is None or work.now - planned > _SCHEDULER_AWAY_AFTER:
            return None
    reason = from_thread.run(_wait_reason, context, caller, ask_of(context, caller, submission))
    return reason if reason is not None and reason.is_impossible else None


async def _wait_reason(context: AppContext, caller: Caller, ask: ForecastQuestion) -> WaitReasonView | None:
    with anyio.move_on_after(_TIMEOUT_S):
        try:
            return (await forecast(context, caller, ask)).wait_reason
        except TrainmasterError:  # no answer: the job is accepted and waits
            return None
    return None
