"""torch.distributed: ``PET_*`` that torchrun reads, and the plain variables of ``init_process_group("env://")``.

https://docs.pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

from core.domain.contracts.context import Seat, endpoint


def variables(seat: Seat) -> dict[str, str]:
    """Variables for torchrun, should the command begin with it; for a replica without a rank only the common ones."""
    # With a shared store the next attempt would read the dead attempt's addresses and never start.
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if seat.member is None:
        return env
    root = seat.world.root
    return env | {
        "PET_NNODES": str(len(seat.world.members)),
        # The processes for torchrun to start, even though the platform itself starts only torchrun.
        "PET_NPROC_PER_NODE": str(max(1, seat.replica.processes)),
        "PET_NODE_RANK": str(seat.member.node_rank),
        "PET_MASTER_ADDR": root.host,
        "PET_MASTER_PORT": str(root.ports.torch),
        "PET_RDZV_ENDPOINT": endpoint(root.host, root.ports.torch),
        # The platform restarts the gang, with fresh ports: torchrun's own restarts read dead addresses.
        "PET_MAX_RESTARTS": "0",
    }


def process_variables(seat: Seat, local_rank: int) -> dict[str, str]:
    """Variables of one process. Empty under torchrun and other launchers, which set them themselves, and under UAI."""
    if seat.member is None or seat.has_launcher or seat.is_uai:
        return {}
    root = seat.world.root
    return {
        "MASTER_ADDR": root.host,
        "MASTER_PORT": str(root.ports.torch),
        "WORLD_SIZE": str(seat.world.size),
        "RANK": str(seat.member.first_rank + local_rank),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(seat.member.processes),
        "GROUP_RANK": str(seat.member.node_rank),
    }
