"""An attempt as MLflow run: each replica but the main one has a nested run of its own.

MLflow's client sends a run id but not its replica. A run for each replica keeps their values apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# A job without one of these uses the first of its custom roles.
_MAIN: Final = ("chief", "worker")
# They serve the others and have no ranks.
_SERVING: Final = ("ps", "evaluator", "scheduler")


def main_role(roles: Sequence[str]) -> str:
    """The role whose replica 0 writes to the attempt's run. ``roles``: all of the gang, in rank order."""
    for role in _MAIN:
        if role in roles:
            return role
    return next((role for role in roles if role not in _SERVING), roles[0])


def run_id_of(attempt_id: str, roles: Sequence[str], role: str, index: int) -> str:
    """The run of a replica: the attempt's id, followed by the replica's name except for the main replica."""
    return attempt_id if (role, index) == (main_role(roles), 0) else f"{attempt_id}-{role}-{index}"


def replica_of_run(run_id: str, attempt_id: str, roles: Sequence[str]) -> str | None:
    """The replica, such as ``worker-1``, that writes to this run; ``None`` if no replica of the attempt does."""
    if run_id == attempt_id:
        return f"{main_role(roles)}-0"
    if not run_id.startswith(f"{attempt_id}-"):
        return None
    name = run_id.removeprefix(f"{attempt_id}-")
    role, _, index = name.rpartition("-")
    is_number = index.isascii() and index.isdecimal() and index == str(int(index))
    return name if role in roles and is_number else None
