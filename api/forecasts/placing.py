"""Whether a job can ever start here: for who would not be told why it waits, or would find out only after a while."""

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

_PATIENCE_S: Final = 3.0
# A scheduler that planned nothing for so long is away, and is not waited for.
_AWAY: Final = timedelta(seconds=30)


def why_never(context: AppContext, caller: Caller, submission: Submission) -> WaitReasonView | None:
    """Why, by the planner, no node there is could ever hold the job; ``None``: one could, or nobody knows.

    A job that says itself how long it waits (``max_wait``) is not asked for, nor one while no scheduler answers.
    Call it in a thread of the server, without an open transaction.
    """
    if submission.spec.max_wait is not None:
        return None
    if not any(role.resources.model_dump(exclude_defaults=True) for role in submission.spec.roles.values()) and not (
        submission.spec.node_selector
    ):
        return None  # it fits wherever there is a node
    with context.read() as work:
        planned = marked_at(work.session, TICK_DONE)
        if planned is None or work.now - planned > _AWAY:
            return None
    reason = from_thread.run(_asked, context, caller, ask_of(context, caller, submission))
    return reason if reason is not None and reason.is_impossible else None


async def _asked(context: AppContext, caller: Caller, ask: ForecastQuestion) -> WaitReasonView | None:
    with anyio.move_on_after(_PATIENCE_S):
        try:
            return (await forecast(context, caller, ask)).wait_reason
        except TrainmasterError:  # nobody answers, or it cannot be answered: then it waits as every job does
            return None
    return None
