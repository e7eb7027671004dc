"""Whether a job can ever start here: its client polls for ever otherwise, and shows its user no reason.

Vertex AI refuses what is beyond a quota when it is submitted; so is what no node of the cluster could ever hold.
"""

from __future__ import annotations

from api.app.unit_of_work import AppContext
from api.auth import Caller
from api.forecasts.placing import why_never
from api.jobs.service import Submission
from api.protocols.vertex.answers import NoCapacity


def check_placement(context: AppContext, caller: Caller, submission: Submission) -> None:
    """Raise ``NoCapacity`` where the planner says that no node there is could ever hold the job; as ``why_never``."""
    reason = why_never(context, caller, submission)
    if reason is not None:
        raise NoCapacity(
            f"The job can never start here: {reason.sentence} (scheduling.max_wait_duration lets it wait for such a "
            "node.)"
        )
