"""MPI: a host file and host lists for ``mpirun``, ``horovodrun -H``, ``perseusrun -H``.

Every replica gets them: a launcher may run in a role of its own.
"""

from __future__ import annotations

from core.domain.contracts.context import Seat


def variables(seat: Seat) -> dict[str, str]:
    if not seat.world.members:
        return {}
    return {
        "OMPI_MCA_orte_default_hostfile": hostfile_path(seat),
        "TRAINMASTER_HOSTS": ",".join(f"{host}:{slots}" for host, slots in _slots(seat).items()),
    }


def files(seat: Seat) -> dict[str, str]:
    """Path -> content of the files that the runtime writes before the start."""
    if not seat.world.members:
        return {}
    return {hostfile_path(seat): "".join(f"{host} slots={slots}\n" for host, slots in _slots(seat).items())}


def hostfile_path(seat: Seat) -> str:
    return f"{seat.context.paths.own}/hostfile"


def _slots(seat: Seat) -> dict[str, int]:
    """Host -> processes, in rank order. Replicas on one host share its line: mpirun counts a host once."""
    slots: dict[str, int] = {}
    for member in seat.world.members:
        slots[member.address.host] = slots.get(member.address.host, 0) + max(1, member.address.processes)
    return slots
