"""How an attempt looks to MLflow: it is a run, and each replica but the main one has a run of its own below it.

MLflow's client says which run it writes to and not where it runs. A run for each replica keeps their values apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# A job without one of these writes by the first of its own roles.
_MAIN: Final = ("chief", "worker")
# They serve the others and are no rank.
_SERVING: Final = ("ps", "evaluator", "scheduler")


def main_role(roles: Sequence[str]) -> str:
    """The role whose replica 0 writes to the attempt's own run. ``roles``: all of the gang, in rank order."""
    for role in _MAIN:
        if role in roles:
            return role
    return next((role for role in roles if role not in _SERVING), roles[0])


def run_id_of(attempt_id: str, roles: Sequence[str], role: str, index: int) -> str:
    """The run that a replica writes to: the attempt's id, and for all but the main replica its own name behind it."""
    return attempt_id if (role, index) == (main_role(roles), 0) else f"{attempt_id}-{role}-{index}"


def replica_of_run(run_id: str, attempt_id: str, roles: Sequence[str]) -> str | None:
    """The replica, such as ``worker-1``, that writes to this run; ``None`` when it is no run of this attempt's replicas."""
    if run_id == attempt_id:
        return f"{main_role(roles)}-0"
    if not run_id.startswith(f"{attempt_id}-"):
        return None
    name = run_id.removeprefix(f"{attempt_id}-")
    role, _, index = name.rpartition("-")
    is_number = index.isascii() and index.isdecimal() and index == str(int(index))
    return name if role in roles and is_number else None
