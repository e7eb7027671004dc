"""Feasibility check at submission: the client would poll an infeasible job for ever without showing a reason.

Vertex AI refuses jobs beyond a quota at submission; here, jobs that no node could ever run are refused as well.
"""

from __future__ import annotations

from api.app.unit_of_work import AppContext
from api.auth import Caller
from api.forecasts.service import why_never
from api.jobs.service import Submission
from api.protocols.vertex.answers import NoCapacity


def check_placement(context: AppContext, caller: Caller, submission: Submission) -> None:
    """Raise ``NoCapacity`` if the planner finds the job infeasible, else as ``why_never``."""
    reason = why_never(context, caller, submission)
    if reason is not None:
        raise NoCapacity(
            f"The job can never start here: {reason.sentence} (scheduling.max_wait_duration lets it wait for such a "
            "node.)"
        )
