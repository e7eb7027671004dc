"""XGBoost's collective: the tracker's address (the program's rank 0 starts it), and the task's number.

https://xgboost.readthedocs.io/en/stable/tutorials/param_tuning.html and ``xgboost.collective``
"""

from __future__ import annotations

from core.domain.contracts.context import Seat


def process_variables(seat: Seat, local_rank: int) -> dict[str, str]:
    """Empty for a replica without a rank, or under a launcher: its processes would all read the same rank."""
    if seat.member is None or seat.has_launcher:
        return {}
    root = seat.world.root
    return {
        "DMLC_TRACKER_URI": root.host,
        "DMLC_TRACKER_PORT": str(root.ports.dmlc),
        "DMLC_TASK_ID": str(seat.member.first_rank + local_rank),
        "DMLC_NUM_WORKER": str(seat.world.size),
    }
