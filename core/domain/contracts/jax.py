"""JAX: what ``jax.distributed.initialize()`` reads.

https://docs.jax.dev/en/latest/_autosummary/jax.distributed.initialize.html
"""

from __future__ import annotations

from core.domain.contracts.context import Seat, framework_endpoint


def process_variables(seat: Seat, local_rank: int) -> dict[str, str]:
    """Empty for a replica without a rank, or under a launcher: its processes would all read the same rank."""
    if seat.member is None or seat.has_launcher:
        return {}
    env = {
        "JAX_COORDINATOR_ADDRESS": framework_endpoint(seat.world.root),
        "JAX_NUM_PROCESSES": str(seat.world.size),
        "JAX_PROCESS_ID": str(seat.member.first_rank + local_rank),
    }
    processes = seat.member.processes
    if processes > 1 and seat.gpu_count >= processes:
        # Without it each process takes every GPU of the replica, and the second one finds them taken.
        share = seat.gpu_count // processes
        env["JAX_LOCAL_DEVICE_IDS"] = ",".join(str(local_rank * share + i) for i in range(share))
    return env
