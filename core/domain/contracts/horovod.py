"""Horovod with gloo, without mpirun: the ranks, and the key-value store that rank 0's runtime serves.

A "host" of Horovod is a replica here, even where several share a machine: each replica sees its own GPUs alone, so
``hvd.local_rank()`` must count inside it to be a device number. Horovod's local and cross groups meet in the store
under ``local_<HOROVOD_HOSTNAME>`` and ``cross_<local rank>`` (horovod/common/gloo/gloo_context.cc); so the host name
given here is the replica's own name, never 127.0.0.1, which two replicas could share.

Off the loopback the interface (``HOROVOD_GLOO_IFACE``) is left to the runtime, which alone sees how it is called.
"""

from __future__ import annotations

from core.domain.contracts.context import Seat


def process_variables(seat: Seat, local_rank: int) -> dict[str, str]:
    """Empty for a replica without a rank, or under a launcher, which sets them itself. ``horovodrun`` is none: see
    ``trainmaster_runtime.launchers``.
    """
    if seat.member is None or seat.has_launcher:
        return {}
    # Cross group: the replicas that have a process with this local rank; differs if process counts differ.
    across = [member for member in seat.world.members if member.processes > local_rank]
    root = seat.world.root
    env = {
        "HOROVOD_RANK": str(seat.member.first_rank + local_rank),
        "HOROVOD_SIZE": str(seat.world.size),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(seat.member.processes),
        "HOROVOD_CROSS_RANK": str(across.index(seat.member)),
        "HOROVOD_CROSS_SIZE": str(len(across)),
        "HOROVOD_HOSTNAME": f"{seat.replica.role}-{seat.replica.index}",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": root.host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(root.ports.gloo),
    }
    return env | {"HOROVOD_GLOO_IFACE": "lo"} if _is_loopback(seat.replica.host) else env


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host in ("localhost", "::1")
