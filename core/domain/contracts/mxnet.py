"""MXNet and other ps-lite programs: scheduler, servers (our ps) and workers (our ranks).

ps-lite needs one more process than servers and workers: the scheduler, which runs the same command and is found at
``DMLC_PS_ROOT_URI``. It is a replica of the role ``scheduler``; ``contract: mxnet`` adds it to the spec. A job without
one gets none of these variables: they could only make a program wait for a scheduler that never comes.

https://mxnet.apache.org/versions/1.9.1/api/faq/distributed_training.html
"""

from __future__ import annotations

from core.domain.contracts.context import DMLC_SCHEDULER, Seat
from core.domain.jobs.layout import ReplicaAddress


def variables(seat: Seat) -> dict[str, str]:
    """Empty for a replica that takes no part (an evaluator), or in a job without a scheduler."""
    scheduler = _scheduler(seat)
    part = _part(seat)
    if scheduler is None or part is None:
        return {}
    return {
        "DMLC_ROLE": part,
        "DMLC_PS_ROOT_URI": scheduler.host,
        "DMLC_PS_ROOT_PORT": str(scheduler.ports.dmlc),
        "DMLC_NUM_SERVER": str(len(seat.layout.of_role("ps"))),
        "DMLC_NUM_WORKER": str(seat.world.size),
        "DMLC_NODE_HOST": seat.replica.host,
        "PS_VERBOSE": "1",
    }


def process_variables(seat: Seat, local_rank: int) -> dict[str, str]:
    if seat.member is None or _scheduler(seat) is None:
        return {}
    return {"DMLC_WORKER_ID": str(seat.member.first_rank + local_rank)}


def _scheduler(seat: Seat) -> ReplicaAddress | None:
    return next(iter(seat.layout.of_role(DMLC_SCHEDULER)), None)


def _part(seat: Seat) -> str | None:
    if seat.replica.role == DMLC_SCHEDULER:
        return "scheduler"
    if seat.replica.role == "ps":
        return "server"
    return None if seat.member is None else "worker"
