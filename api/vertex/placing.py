"""Whether a job can ever start here: its client polls for ever otherwise, and shows its user no reason.

Vertex AI refuses what is beyond a quota when it is submitted; so is what no node of the cluster could ever hold.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import anyio
from anyio import from_thread
from trainmaster.wire.jobs import WaitReasonView

from api.auth import Caller
from api.forecasts.service import ask_of, forecast
from api.jobs.service import Submission
from api.vertex.answers import NoCapacity
from api.work import Platform
from core.db.leases import TICK_DONE, marked_at
from core.db.repositories.questions import Ask
from core.domain.errors import TrainmasterError

_PATIENCE_S: Final = 3.0
# A scheduler that planned nothing for so long is away, and is not waited for.
_AWAY: Final = timedelta(seconds=30)


def demand_place(platform: Platform, caller: Caller, submission: Submission) -> None:
    """Raise ``NoCapacity`` where the planner says that no node there is could ever hold the job.

    A job that says itself how long it waits (``max_wait``) is not asked for, nor one while no scheduler answers.
    Call it in a thread of the server, without an open transaction.
    """
    if submission.spec.max_wait is not None:
        return
    if not any(role.resources.model_dump(exclude_defaults=True) for role in submission.spec.roles.values()) and not (
        submission.spec.node_selector
    ):
        return  # it fits wherever there is a node
    with platform.read() as work:
        planned = marked_at(work.session, TICK_DONE)
        if planned is None or work.now - planned > _AWAY:
            return
    reason = from_thread.run(_asked, platform, caller, ask_of(platform, caller, submission))
    if reason is not None and reason.is_impossible:
        raise NoCapacity(
            f"The job can never start here: {reason.sentence} (scheduling.max_wait_duration lets it wait for such a node.)"
        )


async def _asked(platform: Platform, caller: Caller, ask: Ask) -> WaitReasonView | None:
    with anyio.move_on_after(_PATIENCE_S):
        try:
            return (await forecast(platform, caller, ask)).wait_reason
        except TrainmasterError:  # nobody answers, or it cannot be answered: then it waits as every job does
            return None
    return None
